"""Apache Kafka's own Java producer, called from Python: py4j, which pyspark brings, needs no Java compiler."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from interop.kafka_tools import JARS
from interop.librdkafka import DEADLINE_S

STRINGS = "org.apache.kafka.common.serialization.StringSerializer"


def _py4j_jar() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    (jar,) = Path(spec.origin).parent.glob("jars/py4j-*.jar")
    return jar


@contextmanager
def java_machine() -> Iterator[JavaGateway]:
    """A Java virtual machine that has Kafka's classes, on a port of its own and with a secret; ends with the block."""
    port, secret, process = launch_gateway(
        classpath=f"{_py4j_jar()}:{JARS}/*",
        javaopts=["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"],
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=secret, auto_convert=True))
    try:
        yield gateway
    finally:
        gateway.shutdown()
        process.stdin.close()  # it ends with its input, if not by itself
        process.wait(DEADLINE_S)


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
