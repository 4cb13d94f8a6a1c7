import java.time.Duration;
import java.util.Properties;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Prints the number of its partitions whenever that changes: BOOTSTRAP GROUP PATTERN [NAME=VALUE...]. */
public class PatternMember {
    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        for (int i = 3; i < args.length; i++) {
            String[] setting = args[i].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            consumer.subscribe(Pattern.compile(args[2]));
            int known = -1;
            while (true) {
                consumer.poll(Duration.ofMillis(100));
                if (consumer.assignment().size() != known) {
                    known = consumer.assignment().size();
                    System.out.println(known);
                }
            }
        }
    }
}
