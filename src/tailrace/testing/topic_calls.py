"""The calls of a cluster for topics, records, and waits for a state.

The clients are imported by the first call: a test without such calls starts sooner.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from tailrace.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tailrace.client.reading.records_ahead import ConsumerRecord
    from tailrace.client.writing.outgoing import RecordMetadata
    from tailrace.testing.comparison import Expected
    from tailrace.testing.feeding import Content, InputRecord
    from tailrace.testing.topic_contents import Isolation
    from tailrace.testing.waits import Sight

_WAIT_S = 30.0
"""The longest wait for a state of the cluster, unless a call says another time."""
P = ParamSpec("P")
T = TypeVar("T")

__tracebackhide__ = True  # pytest shows the line of the test


def _brief(call: "Callable[Concatenate[TopicCalls, P], T]") -> "Callable[Concatenate[TopicCalls, P], T]":
    """The call with KafkaErrors whose traceback ends here: their detail says more than the frames of a client."""

    @wraps(call)
    def work(cluster: "TopicCalls", /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(cluster, *args, **kwargs)
        except KafkaError as fault:
            raise _reason(cluster, fault).without_frames() from None

    return work


def _reason(cluster: "TopicCalls", fault: KafkaError) -> KafkaError:
    """The fault, or why nothing answers: no broker runs."""
    if fault.code is ErrorCode.NETWORK_EXCEPTION:
        try:
            _ = cluster.running_servers
        except KafkaError as reason:
            return reason
    return fault


class TopicCalls(ABC):
    """Topics, records and waits, of a cluster with these addresses."""

    def __init__(self) -> None:
        self.named_topics: dict[str, int] = {}
        """The topics that calls of this cluster have named, each with the last time, in ms since 1970, for the report
        of a failed test."""

    @property
    @abstractmethod
    def bootstrap_servers(self) -> str:
        """`HOST:PORT[,HOST:PORT...]` of all brokers."""

    @property
    @abstractmethod
    def running_servers(self) -> str:
        """The addresses of the brokers that run. Raises KafkaError if no broker runs."""

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings of a client of this cluster, for `Producer(cluster.client_settings)`: the addresses, and the
        security of a cluster that has security."""
        return {"bootstrap.servers": self.bootstrap_servers}

    @property
    def running_settings(self) -> dict[str, str]:
        """`client_settings` with the addresses of the brokers that run. Raises KafkaError if no broker runs."""
        return {**self.client_settings, "bootstrap.servers": self.running_servers}

    @property
    @abstractmethod
    def running_nodes(self) -> list[int]:
        """The numbers of the nodes that run."""

    @_brief
    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic, wait until it can be used, and return its name.

        Waits for brokers that run and are out of the cluster for a moment, such as a node that has just started.
        """
        from tailrace.client.admin.topics import NewTopic
        from tailrace.client.blocking.admin import Admin
        from tailrace.testing.waits import see_brokers, wait_until

        self._name(topic)
        replicas = -1 if replication_factor is None else replication_factor
        try:
            wanted = NewTopic(topic, partitions, replicas, configs=texts(config))
        except (TypeError, ValueError) as fault:
            raise fault.with_traceback(None) from None  # the argument is named: no frame says more
        with Admin(self.client_settings) as admin:
            try:
                admin.create_topics([wanted])
            except KafkaError as fault:
                running = len(self.running_nodes)
                if fault.code is not ErrorCode.INVALID_REPLICATION_FACTOR or (replication_factor or 0) > running:
                    raise
                # A controller fences a broker whose heartbeats come late, as they do on a machine with too much work.
                look = partial(see_brokers, self.running_settings, running)
                wait_until(f"{running} brokers serve", look, _WAIT_S, call="create_topic")
                admin.create_topics([wanted])
        return topic

    @_brief
    def produce(
        self,
        topic: str,
        records: "Iterable[Content | tuple[Content, Content] | InputRecord]",
        *,
        partitions: int | None = None,
    ) -> "list[RecordMetadata]":
        """Write records, and return their places when the cluster has all of them. A missing topic is created.

        A record is a value, a pair of key and value, or an `InputRecord`; texts, bytes, and dicts and lists, which
        become JSON (see `feed`). Raises TypeError for a single record in the place of a list.
        """
        from tailrace.testing.feeding import feed, list_of

        listed = list_of("records", records)
        self._name(topic)
        return feed(self, topic, listed, partitions=partitions)

    @_brief
    def read_all(
        self, topic: str, *, isolation: "Isolation" = "read_committed", timeout: float = _WAIT_S
    ) -> "list[ConsumerRecord]":
        """The records that the topic holds now, by partition and offset.

        Raises KafkaError for a topic that does not exist, and TimeoutError.
        """
        from tailrace.testing.topic_contents import read_all

        self._name(topic)
        return read_all(self.client_settings, topic, isolation=isolation, timeout=timeout)

    @_brief
    def assert_holds(
        self,
        topic: str,
        records: "Iterable[Expected]",
        *,
        ordered: bool = False,
        allow_duplicates: bool = False,
        isolation: "Isolation" = "read_committed",
        timeout: float = 10.0,
    ) -> None:
        """Assert that the topic holds these records and no other: values, pairs of key and value, or `InputRecord`, as
        for `produce`.

        While records, or the topic, are missing and no record is unexpected, waits up to `timeout` seconds for them. A
        topic that does not exist holds no record. `ordered` compares the order too, of a topic whose records are in one
        partition. `allow_duplicates` accepts repeated copies of the expected records (at least once). The
        AssertionError shows what is missing, there again, and unexpected, and the last records of the topic.
        """
        from tailrace.testing.feeding import list_of
        from tailrace.testing.topic_contents import assert_holds, read_all

        listed = list_of("records", records)
        self._name(topic)
        servers = self.client_settings

        def read(left_s: float) -> "list[ConsumerRecord]":
            return read_all(servers, topic, isolation=isolation, timeout=left_s)

        assert_holds(read, topic, listed, ordered=ordered, allow_duplicates=allow_duplicates, timeout=timeout)

    # Waits. Each raises TimeoutError that names what it waited for, and what it saw last

    def wait_for_lag(self, group: str, topic: str, *, at_most: int = 0, timeout: float = _WAIT_S) -> int:
        """Wait until the group has committed all records of the topic but `at_most`; returns the lag.

        A partition without a committed offset counts with all its records.
        """
        from tailrace.testing.waits import group_account, see_lag, wait_until

        return wait_until(
            f"group {group!r} has a lag of at most {at_most} on topic {topic!r}",
            lambda left_s: see_lag(self.running_settings, group, topic, at_most, left_s),
            timeout,
            call="wait_for_lag",
            explain=lambda: group_account(self.running_settings, group, topic),
        )

    def wait_until_leader(self, topic: str, partition: int = 0, *, timeout: float = _WAIT_S) -> int:
        """Wait until a node that runs leads the partition; returns the number of the node."""
        from tailrace.model.partitions import TopicPartition
        from tailrace.testing.waits import see_leader, wait_until

        def look(left_s: float) -> "Sight":
            return see_leader(self.running_settings, TopicPartition(topic, partition), self.running_nodes, left_s)

        return wait_until(f"partition {topic}-{partition} has a leader", look, timeout, call="wait_until_leader")

    def wait_until_in_sync(self, topic: str | None = None, *, timeout: float = _WAIT_S) -> None:
        """Wait until all replicas of the topic, or of all topics, are in sync."""
        from tailrace.testing.waits import see_in_sync, wait_until

        wanted = "all replicas of all topics are" if topic is None else f"all replicas of topic {topic!r} are"
        wait_until(
            f"{wanted} in sync",
            lambda left_s: see_in_sync(self.running_settings, topic, left_s),
            timeout,
            call="wait_until_in_sync",
        )

    def _name(self, topic: str) -> None:
        if not isinstance(topic, str):
            raise TypeError(f"the name of a topic is a text, not {topic!r}")
        self.named_topics[topic] = int(time.time() * 1000)


def texts(config: Mapping[str, object] | None) -> dict[str, str] | None:
    """Settings as Kafka has them, in text."""
    return None if config is None else {name: _text(value) for name, value in config.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
