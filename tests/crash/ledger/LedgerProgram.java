import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A program of the ledger for Java's client: PLAN CONSTANTS, with the plan, the diary and the records of program.py. */
public class LedgerProgram {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration SHORT = Duration.ofMillis(20);
    private static final int CALL_MS = 15_000;
    private final JsonNode plan;
    private final JsonNode constants;
    private final Path output;
    private final String client;
    private final TopicPartition source;
    private final int accounts;
    private KafkaProducer<String, String> producer;
    private KafkaConsumer<String, String> inputs;
    private KafkaConsumer<String, String> ledger;
    private final Deque<ConsumerRecord<String, String>> waiting = new ArrayDeque<>();
    private volatile boolean isOver;

    private LedgerProgram(String plan, String constants) throws IOException {
        this.plan = JSON.readTree(plan);
        this.constants = JSON.readTree(constants);
        output = Path.of(this.plan.get("output").asText());
        client = this.plan.get("client").asText();
        source = new TopicPartition(this.plan.get("source").asText(), 0);
        accounts = this.plan.get("partitions").get("accounts").asInt();
    }

    public static void main(String[] args) throws Exception {
        LedgerProgram program = new LedgerProgram(args[0], args[1]);
        Thread end = new Thread(program::waitForEnd);
        end.setDaemon(true);
        end.start();
        try {
            if (program.plan.get("role").asText().equals("read")) program.read();
            else program.work();
        } catch (KafkaException fault) {
            program.note("error", program.fault(fault).put("fatal", true));
            fault.printStackTrace();
            System.err.flush();
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0);
    }

    private void waitForEnd() {
        try {
            System.in.read();
        } catch (IOException closed) {
            // it has ended, too
        }
        isOver = true;
    }

    private void write(String lines) throws IOException {
        Files.writeString(output, lines, StandardCharsets.UTF_8, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    private void note(String op, ObjectNode facts) throws IOException {
        write(JSON.writeValueAsString(facts.put("op", op).put("at", System.nanoTime())) + "\n");
    }

    private ObjectNode named(String name) {
        return JSON.createObjectNode().put("name", name);
    }

    private ObjectNode fault(KafkaException fault) {
        String cause = fault.getCause() == null ? "" : " caused by " + fault.getCause();
        return JSON.createObjectNode().put("why", fault + cause);
    }

    private KafkaConsumer<String, String> consumer(Collection<TopicPartition> places, String group) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", plan.get("servers").asText());
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "none");
        settings.put("default.api.timeout.ms", String.valueOf(CALL_MS));
        if (group != null) settings.put("group.id", group);
        var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.assign(places);
        return consumer;
    }

    private void work() throws Exception {
        note("alive", JSON.createObjectNode());
        Properties settings = new Properties();
        settings.put("bootstrap.servers", plan.get("servers").asText());
        settings.put("transactional.id", plan.get("transactional_id").asText());
        settings.put("transaction.timeout.ms", plan.get("transaction_timeout_ms").asText());
        settings.put("max.block.ms", String.valueOf(CALL_MS));
        settings.put("request.timeout.ms", "10000");
        settings.put("delivery.timeout.ms", String.valueOf(CALL_MS));
        producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        patiently(producer::initTransactions);
        inputs = consumer(List.of(source), plan.get("group").asText());
        OffsetAndMetadata committed = inputs.committed(Set.of(source)).get(source);
        inputs.seek(source, committed == null ? 0 : committed.offset());
        List<TopicPartition> places = new ArrayList<>();
        for (int number = 0; number < accounts; number++) places.add(new TopicPartition("accounts", number));
        ledger = consumer(places, null);
        ledger.seekToEnd(places);
        places.forEach(ledger::position);
        note("ready", JSON.createObjectNode());
        for (int number = 1; !isOver; number++) {
            transact(client + "-" + plan.get("life").asInt() + "-" + number, number);
            Thread.sleep(plan.get("pause_ms").asLong());
        }
        note("over", JSON.createObjectNode());
    }

    /** Make the call again if only its time was over. */
    private void patiently(Runnable call) {
        long deadline = System.nanoTime() + 2_000_000L * CALL_MS;
        while (true) {
            try {
                call.run();
                return;
            } catch (TimeoutException late) {
                if (System.nanoTime() > deadline) throw late;
            }
        }
    }

    private void transact(String name, int number) throws Exception {
        List<ConsumerRecord<String, String>> records = number % 2 == 1 ? nextInputs() : List.of();
        boolean commits = number % constants.get("ABORT_EVERY").asInt() != 0;
        note("began", named(name).put("number", number).put("kind", records.isEmpty() ? "transfer" : "copy"));
        try {
            producer.beginTransaction();
            if (records.isEmpty()) transfer(name, number);
            else copy(name, records);
            if (commits) {
                // Kafka 4.1's sender asks whether records wait, and then takes the next request: one that was put there in
                // between is the end of a transaction whose last records still wait. They would be left out.
                producer.flush();
                note("commits", named(name));
                patiently(producer::commitTransaction);
            }
        } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException fatal) {
            throw fatal;
        } catch (KafkaException fault) {
            note("error", fault(fault).put("name", name).put("fatal", false));
            commits = false;
        }
        if (!commits) {
            patiently(producer::abortTransaction);
            for (int at = records.size() - 1; at >= 0; at--) waiting.addFirst(records.get(at));
        }
        note("ended", named(name).put("outcome", commits ? "committed" : "aborted"));
    }

    private List<ConsumerRecord<String, String>> nextInputs() {
        int most = constants.get("OF_ONE_COPY").asInt();
        if (waiting.size() < most) inputs.poll(SHORT).forEach(waiting::add);
        List<ConsumerRecord<String, String>> taken = new ArrayList<>();
        while (taken.size() < most && !waiting.isEmpty()) taken.add(waiting.removeFirst());
        return taken;
    }

    private void copy(String name, List<ConsumerRecord<String, String>> records) throws Exception {
        int partitions = plan.get("partitions").get("copies").asInt();
        for (int index = 0; index < records.size(); index++) {
            long offset = records.get(index).offset();
            ObjectNode fields = record(name, index, records.size());
            fields.putArray("copied").add(client).add(offset);
            send("copies", (int) (offset % partitions), fields);
        }
        long end = records.get(records.size() - 1).offset() + 1;
        var group = new ConsumerGroupMetadata(plan.get("group").asText());
        producer.sendOffsetsToTransaction(Map.of(source, new OffsetAndMetadata(end)), group);
    }

    private void transfer(String name, int number) throws Exception {
        int payer = number % accounts;
        int payee = (payer + 1 + number / accounts % (accounts - 1)) % accounts;
        int amount = number % 97 + 2;
        send("accounts", payer, record(name, 0, 3).put("amount", -amount));
        producer.flush();
        int most = constants.get("SIGHT").asInt();
        Map<Integer, Deque<ConsumerRecord<String, String>>> seen = new TreeMap<>();
        for (ConsumerRecord<String, String> one : ledger.poll(SHORT)) {
            Deque<ConsumerRecord<String, String>> latest = seen.computeIfAbsent(one.partition(), key -> new ArrayDeque<>());
            latest.addLast(one);
            if (latest.size() > most) latest.removeFirst();
        }
        ObjectNode fields = record(name, 1, 3).put("amount", amount - 1).put("at", System.nanoTime());
        var saw = fields.putArray("saw");
        for (var latest : seen.values()) {
            for (ConsumerRecord<String, String> one : latest) {
                saw.addArray().add(one.partition()).add(one.offset()).add(JSON.readTree(one.value()).get("t").asText());
            }
        }
        send("accounts", payee, fields);
        send("accounts", payer, record(name, 2, 3).put("amount", 1));
    }

    private ObjectNode record(String name, int index, int size) {
        return JSON.createObjectNode().put("t", name).put("i", index).put("of", size);
    }

    private void send(String topic, int partition, ObjectNode fields) throws IOException {
        producer.send(new ProducerRecord<>(topic, partition, null, JSON.writeValueAsString(fields)));
    }

    private void read() throws IOException {
        String end = constants.get("END").asText();
        Set<TopicPartition> left = new HashSet<>();
        var topics = plan.get("partitions").fields();
        while (topics.hasNext()) {
            Map.Entry<String, JsonNode> topic = topics.next();
            for (int number = 0; number < topic.getValue().asInt(); number++) {
                left.add(new TopicPartition(topic.getKey(), number));
            }
        }
        KafkaConsumer<String, String> consumer = consumer(left, null);
        left.forEach(place -> consumer.seek(place, 0));
        while (!left.isEmpty()) {
            StringBuilder lines = new StringBuilder();
            for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(200))) {
                var line = JSON.createArrayNode().add(one.topic()).add(one.partition()).add(one.offset()).add(one.value());
                lines.append(JSON.writeValueAsString(line)).append('\n');
                if (one.value().equals(end)) left.remove(new TopicPartition(one.topic(), one.partition()));
            }
            write(lines.toString());
        }
    }
}
