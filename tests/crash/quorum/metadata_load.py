"""A program that changes topics while nodes die: `python -m crash.quorum.metadata_load CLIENT NAME SERVERS HISTORY`.

CLIENT is `own` or `librdkafka`. It works until its stdin is closed. HISTORY gets a line for each change
with the times at which it was asked for and answered, in seconds of the clock that never jumps.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from confluent_kafka.admin import NewTopic as TheirNewTopic

from crash.access import client_settings
from crash.program import Program
from crash.quorum.metadata_changes import SETTING
from tailrace.client.admin.configs import TOPIC
from tailrace.client.blocking import Admin, NewTopic
from tailrace.model.errors import KafkaError

_GIVE_UP_S: Final = 5.0
REPLICAS: Final = 2


class Own:
    """Tailrace's administrator's client, which tries again by itself. Raises one of `faults`, as all of these."""

    faults = (KafkaError,)

    def __init__(self, servers: str) -> None:
        self._admin = Admin(client_settings(servers))

    def create(self, topic: str, partitions: int) -> None:
        self._admin.create_topics([NewTopic(name=topic, partitions=partitions, replication_factor=REPLICAS)])

    def enlarge(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions({topic: partitions})

    def set(self, topic: str, value: str) -> None:
        self._admin.alter_configs(TOPIC, topic, {SETTING: value})

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])


class Librdkafka:
    """confluent-kafka."""

    faults = (confluent_kafka.KafkaException,)

    def __init__(self, servers: str) -> None:
        settings: dict[str, Any] = {**client_settings(servers), "reconnect.backoff.max.ms": 200, "log_level": 0}
        self._admin = AdminClient({**settings, "topic.metadata.refresh.interval.ms": 500})

    def create(self, topic: str, partitions: int) -> None:
        self._wait(self._admin.create_topics([TheirNewTopic(topic, partitions, REPLICAS)], request_timeout=_GIVE_UP_S))

    def enlarge(self, topic: str, partitions: int) -> None:
        self._wait(self._admin.create_partitions([NewPartitions(topic, partitions)], request_timeout=_GIVE_UP_S))

    def set(self, topic: str, value: str) -> None:
        change = ConfigEntry(SETTING, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        self._wait(self._admin.incremental_alter_configs([resource], request_timeout=_GIVE_UP_S))

    def delete(self, topic: str) -> None:
        self._wait(self._admin.delete_topics([topic], request_timeout=_GIVE_UP_S))

    def _wait(self, answers: Mapping[Any, Any]) -> None:
        (answer,) = answers.values()
        answer.result(4 * _GIVE_UP_S)


CLIENTS: Final[Mapping[str, Any]] = {"own": Own, "librdkafka": Librdkafka}


class MetadataLoad:
    """Topics in turn: made, changed, and most of them deleted, so that a long run stays as quick as a short run.

    A topic is left as it is once a change of it was not acknowledged: that change may still happen.
    """

    def __init__(self, program: Program, name: str, client: Any) -> None:
        self._program = program
        self._name = name
        self._client = client

    def run(self) -> None:
        number = 0
        while self._program.goes_on:
            topic = f"{self._name}-{number}"
            all(self._change(op, topic, **facts) for op, facts in self._changes(number) if self._program.goes_on)
            number += 1

    def _changes(self, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "create", {"partitions": 2}
        for value in range(3):
            yield "set", {"value": str(1_000 * number + value)}
        yield "enlarge", {"partitions": 3}
        if number % 8:
            yield "delete", {}

    def _change(self, op: str, topic: str, **facts: Any) -> bool:
        """Whether it was acknowledged."""
        asked_s = time.monotonic()
        why = None
        try:
            getattr(self._client, op)(topic, *facts.values())
        except self._client.faults as fault:
            why = str(fault)
        times = {"asked_s": asked_s, "answered_s": time.monotonic()}
        self._program.note(op, topic=topic, acknowledged=why is None, why=why, **times, **facts)
        self._program.done += why is None
        self._program.report()
        return why is None


def main() -> None:
    kind, name, servers, history = sys.argv[1:]
    program = Program(Path(history))
    MetadataLoad(program, name, CLIENTS[kind](servers)).run()
    program.close()


if __name__ == "__main__":
    main()
