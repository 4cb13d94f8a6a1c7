"""librdkafka in a process of its own.

Its threads block all signals, so a fault in a thread ends its process without a word: the process must not be the
tests' process. The classes below live in that process; tests hold stand-ins, made by the functions at the end.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.managers import BaseManager
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from testkit.programs.waiting import wait_until

DEADLINE_S = 60
"""A test gives up here. No verdict depends on how fast something is."""

Settings = dict[str, str | int | bool]
Headers = tuple[tuple[str, bytes | None], ...]


class Message(NamedTuple):
    """A record as an application sees it."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class _Producer:
    def __init__(self, bootstrap: str, settings: Settings) -> None:
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
        self._is_initialized = False

    def write(self, topic: str, messages: Sequence[Message], timestamps: Sequence[int] | None = None) -> list[int]:
        """Send the messages and wait for their delivery: the partition of each message. Timestamp 0 is now."""
        partitions: dict[int, int] = {}
        faults: list[object] = []

        def delivered(number: int) -> Callable[[object, confluent_kafka.Message], None]:
            return lambda fault, message: (
                faults.append(fault) if fault else partitions.update({number: message.partition()})
            )

        for number, message in enumerate(messages):
            self._producer.produce(
                topic,
                key=message.key,
                value=message.value,
                headers=list(message.headers),
                timestamp=timestamps[number] if timestamps else 0,
                on_delivery=delivered(number),
            )
        assert self._producer.flush(DEADLINE_S) == 0
        assert not faults, faults
        return [partitions[number] for number in range(len(messages))]

    def transact(self, topic: str, messages: Sequence[Message], *, is_commit: bool | None) -> None:
        """Send the messages in one transaction, and end it, or not for None. The settings name a transactional.id."""
        if not self._is_initialized:
            self._producer.init_transactions(DEADLINE_S)
            self._is_initialized = True
        self._producer.begin_transaction()
        self.write(topic, messages)
        if is_commit is not None:
            self.end(is_commit=is_commit)

    def end(self, *, is_commit: bool) -> None:
        """End the transaction that is open."""
        if is_commit:
            self._producer.commit_transaction(DEADLINE_S)
        else:
            self._producer.abort_transaction(DEADLINE_S)


class _Member:
    def __init__(self, bootstrap: str, topic: str, group: str, protocol: str) -> None:
        settings: Settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "group.protocol": protocol,
        }
        if protocol == "classic":
            settings["session.timeout.ms"] = 10_000  # with KIP-848 it is the broker's
        self._consumer = confluent_kafka.Consumer(settings)
        self._consumer.subscribe([topic])

    def poll(self) -> list[Message]:
        return [_plain(message) for message in self._consumer.consume(100, timeout=0.1)]

    def assignment(self) -> set[int]:
        return {partition.partition for partition in self._consumer.assignment()}

    def close(self) -> None:
        self._consumer.close()


class _Tail:
    def __init__(self, bootstrap: str, topic: str, rack: str) -> None:
        """A consumer of one rack that reads new records of partition 0."""
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.rack": rack,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "log_level": 0,
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_END)])

    def poll(self) -> list[bytes]:
        polled = self._consumer.consume(1_000, timeout=0.1)
        return [message.value() for message in polled if message.error() is None]

    def close(self) -> None:
        self._consumer.close()


def _plain(message: confluent_kafka.Message) -> Message:
    assert message.error() is None, message.error()
    return Message(message.key(), message.value(), tuple(message.headers() or ()))


class _Reader:
    def read(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        """The first `count` records of partition 0, without a group."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
        messages: list[Message] = []

        def has_read() -> bool:
            messages.extend(_plain(m) for m in consumer.consume(count, 0.2))
            return len(messages) >= count

        wait_until(has_read, f"{count} records by librdkafka")
        consumer.close()
        return messages

    def offsets_for_times(self, bootstrap: str, topic: str, times: dict[int, int]) -> dict[int, int]:
        """By partition, the first offset at or after this time; -1 without a record."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
        )
        asked = [confluent_kafka.TopicPartition(topic, number, time) for number, time in times.items()]
        try:
            found = consumer.offsets_for_times(asked, timeout=DEADLINE_S)
        except confluent_kafka.KafkaException as fault:
            raise AssertionError(str(fault)) from None  # its own exception stays in its process
        finally:
            consumer.close()
        assert all(at.error is None for at in found), found
        return {at.partition: at.offset for at in found}


class ConfluentAdmin:
    """An administrator's calls. A call that changes something gives the name of the error, or None."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def create_topic(self, topic: str, partitions: int, replicas: int) -> str | None:
        """The error that the client reports, or None."""
        return _error(self._admin.create_topics([NewTopic(topic, partitions, replicas)]))

    def delete_topic(self, topic: str) -> str | None:
        return _error(self._admin.delete_topics([topic]))

    def add_partitions(
        self, topic: str, count: int, assignment: list[list[int]] | None = None, *, validate_only: bool = False
    ) -> str | None:
        wanted = NewPartitions(topic, count, assignment) if assignment else NewPartitions(topic, count)
        return _error(self._admin.create_partitions([wanted], validate_only=validate_only))

    def change_setting(self, kind: str, resource: str, operation: str, name: str, value: str | None) -> str | None:
        """`kind` is TOPIC or BROKER; `operation` SET, DELETE, APPEND or SUBTRACT."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType[operation])
        changed = ConfigResource(ConfigResource.Type[kind], resource, incremental_configs=[entry])
        return _error(self._admin.incremental_alter_configs([changed]))

    def write_settings(self, topic: str, settings: dict[str, str | None]) -> str | None:
        """Write the settings at once: what is not named is as if it had never been set."""
        changed = ConfigResource(ConfigResource.Type.TOPIC, topic, set_config=settings)
        return _error(self._admin.alter_configs([changed]))

    def settings(self, topic: str) -> dict[str, tuple[str | None, int]]:
        """Value and source of each setting."""
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        described = self._admin.describe_configs([asked])[asked].result(DEADLINE_S)
        return {entry.name: (entry.value, entry.source) for entry in described.values()}

    def delete_records(self, topic: str, offset: int) -> int | str:
        """The low watermark of partition 0 afterwards, or the error's name."""
        (future,) = self._admin.delete_records([confluent_kafka.TopicPartition(topic, 0, offset)]).values()
        try:
            return int(future.result(DEADLINE_S).low_watermark)
        except confluent_kafka.KafkaException as refused:
            return str(refused.args[0].name())

    def earliest(self, topic: str) -> int:
        """The first offset of partition 0."""
        asked = confluent_kafka.TopicPartition(topic, 0)
        return int(self._admin.list_offsets({asked: OffsetSpec.earliest()})[asked].result(DEADLINE_S).offset)

    def acls(self) -> list[str]:
        """The access control lists."""
        return list(map(str, self._admin.describe_acls(_ALL_ACLS).result(DEADLINE_S)))

    def allow_reading(self, user: str, topic: str) -> str | None:
        pattern = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL)
        allowed = AclBinding(*pattern, f"User:{user}", "*", AclOperation.READ, AclPermissionType.ALLOW)
        return _error(self._admin.create_acls([allowed]))

    def remove_acls(self) -> str | None:
        return _error(self._admin.delete_acls([_ALL_ACLS]))

    def scram_users(self) -> list[str]:
        """The users with passwords."""
        return list(self._admin.describe_user_scram_credentials().result(DEADLINE_S))

    def add_scram_user(self, user: str, password: str) -> str | None:
        kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096)
        wanted = UserScramCredentialUpsertion(user, kind, password.encode())
        return _error(self._admin.alter_user_scram_credentials([wanted]))


_ALL_ACLS = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


def _error(futures: dict[Any, Any]) -> str | None:
    (future,) = futures.values()
    try:
        future.result(DEADLINE_S)
    except confluent_kafka.KafkaException as refused:
        return str(refused.args[0].name())
    return None


class _MockCluster:
    """librdkafka's own mock of three brokers. Unknown topics are created with four partitions."""

    def __init__(self) -> None:
        self._owner = confluent_kafka.Producer(
            {"test.mock.num.brokers": 3, "bootstrap.servers": "mock", "log_level": 0}
        )

    def bootstrap(self) -> str:
        return ",".join(f"{b.host}:{b.port}" for b in self._owner.list_topics(timeout=10).brokers.values())


class LibrdkafkaProcess(BaseManager):
    """The other process. It ends with ours."""


for _kind in (_Producer, _Member, _Tail, _Reader, ConfluentAdmin, _MockCluster):
    LibrdkafkaProcess.register(_kind.__name__.strip("_"), _kind)

_process: LibrdkafkaProcess | None = None


def librdkafka() -> Any:
    """The process, started at the first use, and again if a fault ended it: the fault fails one test, not all tests."""
    global _process
    alive = any(child.name.startswith(LibrdkafkaProcess.__name__) for child in multiprocessing.active_children())
    if _process is None or not alive:
        _process = LibrdkafkaProcess(ctx=multiprocessing.get_context("spawn"))
        _process.start()
    return _process


class Confluent:
    """The client confluent-kafka."""

    name = "confluent-kafka"
    protocol = "classic"

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str) -> None:
        settings: Settings = {"compression.type": codec, "enable.idempotence": True, "linger.ms": 5}
        librdkafka().Producer(bootstrap, settings).write(topic, messages)

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        messages: list[Message] = librdkafka().Reader().read(bootstrap, topic, count)
        return messages

    def join(self, bootstrap: str, topic: str, group: str) -> Any:
        return librdkafka().Member(bootstrap, topic, group, self.protocol)


class ConfluentConsumerProtocol(Confluent):
    """The same with group.protocol=consumer (KIP-848)."""

    name = "confluent-kafka-kip-848"
    protocol = "consumer"
