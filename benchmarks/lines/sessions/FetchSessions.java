import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.FetchSessionHandler;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.requests.FetchRequest;
import org.apache.kafka.common.requests.FetchResponse;
import org.apache.kafka.common.utils.LogContext;

/**
 * The requester's end of a fetch session as Apache Kafka's clients have it: CPU of building a request and of taking its
 * answer, both with their bytes. One thread, no socket.
 *
 * Arguments: partitions, partitions of a topic, changes (-1: full fetches), fetches that count, fetches that warm up.
 * Prints nanoseconds of CPU per fetch: building, taking.
 */
public final class FetchSessions {
    private static final short VERSION = 17;
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private final List<TopicPartition> partitions = new ArrayList<>();
    private final List<Uuid> ids = new ArrayList<>();
    private final long[] offsets;
    private final int changes;
    private FetchSessionHandler handler = new FetchSessionHandler(new LogContext(), 1);
    private long building;
    private long taking;

    private FetchSessions(int count, int perTopic, int changes) {
        Uuid id = Uuid.randomUuid();
        for (int number = 0; number < count; number++) {
            if (number % perTopic == 0) {
                id = Uuid.randomUuid();
            }
            partitions.add(new TopicPartition("fetch-" + number / perTopic, number % perTopic));
            ids.add(id);
        }
        offsets = new long[count];
        this.changes = changes;
    }

    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]);
        int changes = Integer.parseInt(arguments[2]);
        FetchSessions sessions = new FetchSessions(count, Integer.parseInt(arguments[1]), changes);
        if (changes >= 0) {
            sessions.fetch(count);
        }
        sessions.run(Integer.parseInt(arguments[4]));
        sessions.building = 0;
        sessions.taking = 0;
        int fetches = Integer.parseInt(arguments[3]);
        sessions.run(fetches);
        System.out.println(sessions.building / fetches + " " + sessions.taking / fetches);
    }

    private void run(int fetches) {
        for (int fetch = 0; fetch < fetches; fetch++) {
            if (changes < 0) {
                handler = new FetchSessionHandler(new LogContext(), 1);
                fetch(partitions.size());
                continue;
            }
            for (int number = 0; number < changes; number++) {
                offsets[chosen(number)]++;
            }
            fetch(changes);
        }
    }

    private int chosen(int number) {
        return (int) ((long) number * partitions.size() / Math.max(changes, 1));
    }

    private void fetch(int answered) {
        long begun = THREADS.getCurrentThreadCpuTime();
        FetchSessionHandler.FetchRequestData data = build();
        FetchRequest request = FetchRequest.Builder.forConsumer(VERSION, 500, 1, data.toSend())
                .metadata(data.metadata())
                .removed(data.toForget())
                .replaced(data.toReplace())
                .build(VERSION);
        MessageUtil.toByteBufferAccessor(request.data(), VERSION);
        building += THREADS.getCurrentThreadCpuTime() - begun;

        FetchResponseData answer = answer(answered);
        var bytes = MessageUtil.toByteBufferAccessor(answer, VERSION);
        begun = THREADS.getCurrentThreadCpuTime();
        FetchResponse response = FetchResponse.parse(bytes, VERSION);
        if (!handler.handleResponse(response, VERSION)) {
            throw new IllegalStateException("the answer does not count");
        }
        taking += THREADS.getCurrentThreadCpuTime() - begun;
    }

    private FetchSessionHandler.FetchRequestData build() {
        FetchSessionHandler.Builder builder = handler.newBuilder();
        for (int number = 0; number < offsets.length; number++) {
            builder.add(partitions.get(number), new FetchRequest.PartitionData(
                    ids.get(number), offsets[number], -1, 1_048_576, Optional.empty()));
        }
        return builder.build();
    }

    private FetchResponseData answer(int answered) {
        LinkedHashMap<TopicIdPartition, FetchResponseData.PartitionData> found = new LinkedHashMap<>();
        for (int number = 0; number < answered; number++) {
            int at = answered == offsets.length ? number : chosen(number);
            TopicPartition partition = partitions.get(at);
            found.put(new TopicIdPartition(ids.get(at), partition), new FetchResponseData.PartitionData()
                    .setPartitionIndex(partition.partition())
                    .setHighWatermark(offsets[at])
                    .setLastStableOffset(offsets[at])
                    .setLogStartOffset(0));
        }
        return FetchResponse.of(Errors.NONE, 0, 4711, found, List.of()).data();
    }
}
