"""A consumer with its client's defaults in a process of its own, subscribed to the topics that a pattern matches.

usage: pattern_member.py CLIENT BOOTSTRAP GROUP PATTERN [NAME=VALUE...]

Prints the number of its partitions whenever that changes, and ends with an error from which its client cannot recover.
"""

import asyncio
import sys
from collections.abc import Mapping


def main() -> None:
    client, bootstrap, group, pattern, *given = sys.argv[1:]
    settings = dict(setting.split("=", 1) for setting in given)
    _CLIENTS[client](bootstrap, group, pattern, settings)


class _Count:
    def __init__(self) -> None:
        self._known = -1

    def tell(self, partitions: int) -> None:
        if partitions != self._known:
            self._known = partitions
            sys.stdout.write(f"{partitions}\n")
            sys.stdout.flush()


def _librdkafka(bootstrap: str, group: str, pattern: str, settings: Mapping[str, str]) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group, **settings})
    consumer.subscribe([pattern])
    count = _Count()
    while True:
        message = consumer.poll(0.1)
        # Errors that are not fatal are for information, such as a connection that took long on a busy machine.
        if message is not None and (fault := message.error()):
            sys.stderr.write(f"{fault}\n")
            if fault.fatal():
                sys.exit(1)
        count.tell(len(consumer.assignment()))


def _kafka_python(bootstrap: str, group: str, pattern: str, _: Mapping[str, str]) -> None:
    import kafka

    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=group)
    consumer.subscribe(pattern=pattern)
    count = _Count()
    while True:
        consumer.poll(timeout_ms=1_000)
        count.tell(len(consumer.assignment()))


def _aiokafka(bootstrap: str, group: str, pattern: str, _: Mapping[str, str]) -> None:
    async def read() -> None:
        import aiokafka

        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group)
        consumer.subscribe(pattern=pattern)
        await consumer.start()
        count = _Count()
        while True:
            await consumer.getmany(timeout_ms=100)
            count.tell(len(consumer.assignment()))

    asyncio.run(read())


_CLIENTS = {"librdkafka": _librdkafka, "kafka-python": _kafka_python, "aiokafka": _aiokafka}

if __name__ == "__main__":
    main()
