import java.util.Collection;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;

/** Prints the defaults of Java's clients, NAME=VALUE, for the names given; of a list, the number of its elements. */
public class ClientDefaults {
    public static void main(String[] names) {
        for (String name : names) {
            var defaults = ProducerConfig.configNames().contains(name)
                ? ProducerConfig.configDef().defaultValues() : ConsumerConfig.configDef().defaultValues();
            Object value = defaults.get(name);
            System.out.println(name + "=" + (value instanceof Collection<?> list ? list.size() : value));
        }
    }
}
