"""Apache Kafka's own Java producer, called from Python."""

from typing import Any

from py4j.java_gateway import JavaGateway

STRINGS = "org.apache.kafka.common.serialization.StringSerializer"


class JavaProducer:
    """org.apache.kafka.clients.producer.KafkaProducer of strings."""

    def __init__(self, gateway: JavaGateway, bootstrap: str, **options: str) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "key.serializer": STRINGS,
            "value.serializer": STRINGS,
            **{name.replace("_", "."): value for name, value in options.items()},
        }
        self._classes = gateway.jvm.org.apache.kafka.clients.producer
        self.calls: Any = self._classes.KafkaProducer(settings)
        """The producer itself: beginTransaction and the like, by their Java names."""

    def send(self, topic: str, partition: int, value: str) -> None:
        """To this partition, without a key."""
        self.calls.send(self._classes.ProducerRecord(topic, partition, None, value))
