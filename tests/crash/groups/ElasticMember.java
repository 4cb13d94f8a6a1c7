import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnknownMemberIdException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** A member of an elastic group, with the ledger of elastic_member.py: SERVERS GROUP VIEW NAME LEDGER HANDLER_MS. */
public class ElasticMember implements ConsumerRebalanceListener {
    private static final long COMMIT_NS = 1_000_000_000L;
    private static final int COMMIT_TRIES = 20;
    private static final long COMMIT_PAUSE_MS = 100;
    private final FileOutputStream ledger;
    private final KafkaConsumer<String, String> consumer;
    private final long handlerMs;
    private final Map<TopicPartition, OffsetAndMetadata> done = new HashMap<>();
    private volatile boolean isOver;

    private ElasticMember(String[] args) throws IOException {
        ledger = new FileOutputStream(args[4], true);
        handlerMs = Long.parseLong(args[5]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        settings.put("client.id", args[3]);
        settings.put("group.protocol", "consumer");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.records", "20");
        consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(args[2]), this);
    }

    public static void main(String[] args) throws Exception {
        ElasticMember member = new ElasticMember(args);
        Thread end = new Thread(member::waitForEnd);
        end.setDaemon(true);
        end.start();
        member.work();
        System.exit(0);
    }

    private void waitForEnd() {
        try {
            System.in.read();
            note("\"leaving\":true");
        } catch (IOException closed) {
            // it has ended, too
        }
        isOver = true;
    }

    private void note(String facts) throws IOException {
        ledger.write(("{\"at\":" + System.nanoTime() + "," + facts + "}\n").getBytes(StandardCharsets.UTF_8));
    }

    private void work() throws Exception {
        long committed = System.nanoTime();
        while (!isOver) {
            for (ConsumerRecord<String, String> record : poll()) handle(record);
            if (System.nanoTime() - committed > COMMIT_NS) {
                commit(Map.copyOf(done));
                committed = System.nanoTime();
            }
        }
        commit(Map.copyOf(done));
        consumer.close();
    }

    /** Java's poll raises this error when a member that was removed asks for committed offsets before its heartbeat is
        refused; the next poll joins again. */
    private ConsumerRecords<String, String> poll() {
        try {
            return consumer.poll(Duration.ofMillis(100));
        } catch (UnknownMemberIdException removed) {
            removed.printStackTrace();
            return ConsumerRecords.empty();
        }
    }

    private void handle(ConsumerRecord<String, String> record) throws Exception {
        String place = "[" + record.partition() + "," + record.offset() + "]";
        note("\"begin\":" + place + ",\"key\":\"" + record.key() + "\",\"number\":" + record.value());
        Thread.sleep(handlerMs);
        note("\"end\":" + place);
        done.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
    }

    /** A commit is refused while the answer with the member's next epoch is on its way: it is sent again. */
    private void commit(Map<TopicPartition, OffsetAndMetadata> offsets) {
        for (int tries = 0; !offsets.isEmpty() && isStale(offsets) && tries < COMMIT_TRIES; tries++) {
            try {
                Thread.sleep(COMMIT_PAUSE_MS);
            } catch (InterruptedException fault) {
                throw new KafkaException(fault);
            }
        }
    }

    /** Commit once; whether the member's epoch was stale. */
    private boolean isStale(Map<TopicPartition, OffsetAndMetadata> offsets) {
        long sent = System.nanoTime();
        boolean isAcknowledged = true;
        boolean isStale = false;
        try {
            consumer.commitSync(offsets);
            done.entrySet().removeAll(offsets.entrySet());
        } catch (KafkaException fault) {
            isAcknowledged = false;
            isStale = fault.getMessage().contains("stale member epoch");
            fault.printStackTrace();
        }
        String slots = offsets.entrySet().stream()
            .map(each -> "[" + each.getKey().partition() + ",[[0," + (each.getValue().offset() - 1) + "]]]")
            .collect(Collectors.joining(","));
        try {
            note("\"sent\":" + sent + ",\"ok\":" + isAcknowledged + ",\"commit\":[" + slots + "]");
        } catch (IOException fault) {
            throw new KafkaException(fault);
        }
        return isStale;
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        Map<TopicPartition, OffsetAndMetadata> leaving = new HashMap<>(done);
        leaving.keySet().retainAll(partitions);
        commit(leaving);
        done.keySet().removeAll(partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        done.keySet().removeAll(partitions);
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}
}
