"""The double of each port of the server. *Deferred* ones work or answer when the test says so."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.metadata.feature_levels import METADATA_VERSION, METADATA_VERSION_FEATURE
from tailrace.metadata.image import EMPTY_IMAGE, BrokerImage, ClusterImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.identity import ANONYMOUS, ClientIdentity
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.model.proofs import id_of_secret
from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Change
from tailrace.server.context import RequestContext
from tailrace.server.partitions.table import KnownLeader
from tailrace.server.ports import Buffer
from tailrace.server.produce.transactional_appends import OnVerified, VerificationRequest
from tailrace.storage import Log

EVERY_CHANGE = (
    Change.LOG_END | Change.HIGH_WATERMARK | Change.LAST_STABLE_OFFSET | Change.LOG_START | Change.ROLE | Change.ERROR
)


class RecordingWatcher:
    """A `replication.watchers.Watcher` of partitions that keeps the changes."""

    def __init__(self, changes: list[tuple[Partition, int]]) -> None:
        self._changes = changes

    def changed(self, partition: Partition, kinds: int) -> None:
        self._changes.append((partition, kinds))


BROKER_EPOCHS: Mapping[int, int] = MappingProxyType({1: 11, 2: 12, 3: 13})


def broker_images(
    epochs: Mapping[int, int] = BROKER_EPOCHS, *, fenced: Collection[int] = ()
) -> dict[BrokerId, BrokerImage]:
    """Registered brokers with these epochs, for a `ClusterImage`."""
    return {
        BrokerId(number): BrokerImage(
            broker_id=BrokerId(number),
            incarnation_id=b"i" * 16,
            broker_epoch=epoch,
            endpoints=(),
            fenced=number in fenced,
        )
        for number, epoch in epochs.items()
    }


def with_secret(image: ClusterImage, broker_id: int, secret: bytes) -> ClusterImage:
    """The image in which the registration of this broker needs this secret."""
    brokers = dict(image.brokers)
    registered = brokers[BrokerId(broker_id)]
    brokers[BrokerId(broker_id)] = replace(registered, incarnation_id=id_of_secret(secret))
    return replace(image, brokers=brokers)


class NoCluster:
    """A `server.ports.Controller` of a node that knows of no cluster: its metadata has only a version."""

    image = replace(EMPTY_IMAGE, features={METADATA_VERSION_FEATURE: METADATA_VERSION})
    leader_id = BrokerId(-1)
    applied_end_offset = 0

    def submit(self, command: ControllerCommand, on_done: Callable[[ControllerResponse | KafkaError], None]) -> None:
        raise AssertionError(f"there is no controller for {command}")


class NoPeer:
    """A `server.ports.Peer` of a node that is alone: no answer comes."""

    def __init__(self, call: Callable[[Callable[[], None]], None]) -> None:
        """`call` is a clock's `call_soon`."""
        self._call = call

    def send(
        self,
        node_id: int,
        request: Any,
        on_reply: Callable[[Any], None],
        *,
        oldest_version: int = 0,
        timeout_ms: int | None = None,
    ) -> None:
        self._call(lambda: on_reply(None))


class DeferredController:
    """A `server.ports.Controller` that answers, and changes its image, when the test says so."""

    leader_id = BrokerId(9)

    def __init__(self, image: ClusterImage = EMPTY_IMAGE) -> None:
        self.image = image
        self.waiting: list[tuple[Any, Callable[[Any], None]]] = []

    def submit(self, command: ControllerCommand, on_done: Callable[[Any], None]) -> None:
        self.waiting.append((command, on_done))

    @property
    def commands(self) -> list[Any]:
        """The commands without an answer."""
        return [command for command, _ in self.waiting]


class DeferredPeer:
    """A `server.ports.Peer` that answers when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Any, Callable[[Any], None]]] = []
        """(node, request, `on_reply`) of each request."""
        self.oldest_version = 0
        """The version of the last request."""
        self.timeout_ms: int | None = None
        """The time-out of the last request."""

    def send(
        self,
        node_id: int,
        request: Any,
        on_reply: Callable[[Any], None],
        *,
        oldest_version: int = 0,
        timeout_ms: int | None = None,
    ) -> None:
        self.oldest_version, self.timeout_ms = oldest_version, timeout_ms
        self.waiting.append((node_id, request, on_reply))


class LedElsewhere:
    """The `leaders` of a partition table: broker 2 leads the first three partitions of each topic, in epoch 5."""

    def __init__(self, names: Mapping[TopicId, str] = MappingProxyType({})) -> None:
        self._names = names

    def leader_of(self, topic: str, partition: int) -> KnownLeader | None:
        return KnownLeader(BrokerId(2), 5) if partition < 3 else None

    def topic_name(self, topic_id: TopicId) -> str | None:
        return self._names.get(topic_id)

    def view_refusal(self, topic: str, topic_id: bytes = b"") -> None:
        """No view is refused: there are no views."""


class ScriptedVerifier:
    """A `TransactionVerifier` that answers with `code`, at once or, if `is_slow`, when the test says so."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self.code = ErrorCode.NONE
        self.is_slow = is_slow
        self.requests: list[VerificationRequest] = []
        self._waiting: list[tuple[VerificationRequest, OnVerified]] = []

    def verify(self, request: VerificationRequest, on_done: OnVerified) -> None:
        self.requests.append(request)
        self._waiting.append((request, on_done))
        if not self.is_slow:
            self.answer()

    def answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        for request, on_done in waiting:
            on_done(dict.fromkeys(request.partitions, self.code))


class NotedFailures:
    """A `server.partitions.log_faults.Failures` that keeps its calls."""

    def __init__(self) -> None:
        self.all: list[tuple[str, TopicPartition]] = []
        """The kind and the partition of each call."""

    def lost(self, topic_partition: TopicPartition, /) -> None:
        self.all.append(("lost", topic_partition))

    def stalled(self, topic_partition: TopicPartition, /) -> None:
        self.all.append(("stalled", topic_partition))

    def resumed(self, topic_partition: TopicPartition, /) -> None:
        self.all.append(("resumed", topic_partition))


class ImmediateDisk:
    """A `server.ports.Disk` that takes no time: `call`, a clock's `call_soon`, makes each flush and reports it as
    done."""

    def __init__(self, call: Callable[[Callable[[], None]], None]) -> None:
        self._call = call
        self.flushes = 0
        """The number of requested flushes."""

    def flush(self, log: Log, on_done: Callable[[], None]) -> None:
        self.flushes += 1

        def run() -> None:
            flush_now(log)
            on_done()

        self._call(run)

    def carry_out(self, work: Callable[[], None], on_done: Callable[[], None]) -> None:
        def run() -> None:
            work()
            on_done()

        self._call(run)


class DeferredDisk:
    """A `server.ports.Disk` that flushes when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Log, Callable[[], None]]] = []
        self.works: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def flush(self, log: Log, on_done: Callable[[], None]) -> None:
        self.waiting.append((log, on_done))

    def carry_out(self, work: Callable[[], None], on_done: Callable[[], None]) -> None:
        self.works.append((work, on_done))

    def run(self) -> None:
        """Make and report all requested flushes; do all other work, also the work that follows from it."""
        waiting, self.waiting = self.waiting, []
        for log in {id(log): log for log, _ in waiting}.values():
            flush_now(log)
        for _, on_done in waiting:
            on_done()
        while self.works:
            work, on_done = self.works.pop(0)
            work()
            on_done()


class HoldingDisk(DeferredDisk):
    """A disk that flushes at once, by a clock's `call_soon`; while `holds` is set, only when the test says so."""

    def __init__(self, call: Callable[[Callable[[], None]], None]) -> None:
        super().__init__()
        self.holds = False
        self._call = call

    def flush(self, log: Log, on_done: Callable[[], None]) -> None:
        if self.holds:
            super().flush(log, on_done)
            return

        def run() -> None:
            flush_now(log)
            on_done()

        self._call(run)

    def carry_out(self, work: Callable[[], None], on_done: Callable[[], None]) -> None:
        if self.holds:
            super().carry_out(work, on_done)
            return

        def run() -> None:
            work()
            on_done()

        self._call(run)


def flush_now(log: Log) -> None:
    """Make both steps of a flush at once; do nothing if the log is offline."""
    if log.is_offline:
        return
    ticket = log.flushes.begin()
    ticket.sync()
    log.flushes.finish(ticket)


class ScriptedHandler:
    """A `server.dispatch.Handler` that answers with a function, and keeps the requests."""

    def __init__(self, handle: Callable[[Any, RequestContext], Any] = lambda request, context: None) -> None:
        self.requests: list[Any] = []
        self._handle = handle

    def handle(self, request: Any, context: RequestContext) -> Any:
        self.requests.append(request)
        return self._handle(request, context)


class RecordingConnection:
    """A `server.ports.ServerConnection` that keeps, by slot, what is sent."""

    def __init__(self, *, principal: str = ANONYMOUS, listener: str = "PLAINTEXT") -> None:
        self.is_open = True
        self.identity = ClientIdentity(listener, "127.0.0.1", principal)
        self.answers: dict[int, bytes | None] = {}
        self.close_reason: str | None = None
        self._on_close: list[Callable[[], None]] = []
        self._slots = 0
        self.suspensions = 0
        self.throttle_times_ms: list[int] = []

    @property
    def is_suspended(self) -> bool:
        return self.suspensions > 0

    def next_slot(self) -> int:
        """A slot for the next request."""
        self._slots += 1
        return self._slots - 1

    def answer(self, slot: int, chunks: Sequence[Buffer] | None) -> None:
        assert slot not in self.answers, f"slot {slot} is answered twice"
        if self.is_open:
            self.answers[slot] = None if chunks is None else b"".join(chunks)

    def awaits_answer(self, slot: int) -> bool:
        return self.is_open and slot not in self.answers

    def suspend(self) -> None:
        self.suspensions += 1

    def go_on(self) -> None:
        self.suspensions -= 1

    def throttle(self, throttle_ms: int) -> None:
        self.throttle_times_ms.append(throttle_ms)

    def close(self, reason: str) -> None:
        self.close_reason = reason
        self.hang_up()

    def hang_up(self) -> None:
        """Close the connection from the other side."""
        if self.is_open:
            self.is_open = False
            callbacks, self._on_close = self._on_close, []
            for callback in callbacks:
                callback()

    def on_close(self, callback: Callable[[], None]) -> None:
        self._on_close.append(callback)

    @property
    def callbacks(self) -> int:
        """The number of callbacks for the close."""
        return len(self._on_close)
