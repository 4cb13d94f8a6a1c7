"""A partition without a disk, for fetch sessions: a log is a start and an end."""

from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.proofs import id_of_secret
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.in_sync import InSyncReplicas
from tailrace.replication.outcomes import PartitionRead
from tailrace.replication.watchers import Change, Watchers
from tailrace.storage import ReadLimits

LEADER: Final = BrokerId(1)
TOPIC_ID: Final = TopicId(b"t" * 16)
RECORD_BYTES: Final = 10
INACTIVE_MS: Final = 1 << 20
"""A session that was last used so long before the begin may be evicted by any other session."""
_LAG_MS: Final = 1 << 30


class Truth(NamedTuple):
    """The facts about a partition when an answer left."""

    is_readable: bool
    high_watermark: int
    log_start_offset: int
    log_end_offset: int
    is_held_back: bool


SECRET: Final = b"of the follower."


class Registration(NamedTuple):
    """A follower's registration, as the leader knows the follower."""

    broker_epoch: int
    is_alive: bool = True
    incarnation_id: bytes = id_of_secret(SECRET)


class EventClock:
    """A clock that advances with each event, by enough that another answer may leave."""

    def __init__(self) -> None:
        self.now_ms = INACTIVE_MS

    def monotonic_ms(self) -> int:
        return self.now_ms

    def call_at(self, when_ms: int, callback: Any) -> None:
        raise AssertionError("the last answer of high watermarks alone is long ago")


class SessionIds:
    """Random bytes that never come twice."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self, size: int) -> bytes:
        self._last += 1
        return self._last.to_bytes(size, "big")


class SmallPartition:
    """A partition of the leader, as `server.fetch` and `InSyncReplicas` see the partition: both a Partition and a
    Replica."""

    is_leader = True
    is_closed = False
    leader_epoch = 0
    leader_epoch_start_offset = 0
    written_bytes = 0
    sent_bytes = 0
    topic_id = TOPIC_ID
    config = TopicConfig()

    def __init__(self, number: int, clock: EventClock, *, follower: BrokerId | None) -> None:
        self.topic_partition = TopicPartition("orders", number)
        self.log = SimpleNamespace(
            log_start_offset=0,
            log_end_offset=0,
            times=SimpleNamespace(checked_from=0),
            keys=SimpleNamespace(noted=None),
            is_offline=False,
            is_damaged=False,
        )
        self.context = SimpleNamespace(
            broker_id=LEADER, monotonic_ms=clock.monotonic_ms, lag_ms=_LAG_MS, is_flushed=True
        )
        self.mark = SimpleNamespace(offset=0)
        self.watchers: Watchers[Any] = Watchers(self)
        self.state: PartitionState | None = None
        self.is_readable = True
        self.is_held_back = False
        """Whether a throttle keeps its records from the follower (KIP-73)."""
        self.appended_ms: list[int] = []
        """The time at which each record came."""
        replicas = (LEADER,) if follower is None else (LEADER, follower)
        self.in_sync = InSyncReplicas(_as_replica(self))
        self.in_sync.take_state(
            PartitionState(
                topic_id=TOPIC_ID,
                replicas=replicas,
                in_sync_replicas=replicas,
                leader=LEADER,
                leader_epoch=LeaderEpoch(0),
                partition_epoch=0,
            )
        )

    # For the product

    def leads_in(self, leader_epoch: int) -> bool:
        return True

    def check_leader(self, leader_epoch: int = -1) -> None:
        pass

    def notify(self, kinds: int) -> None:
        self.watchers.notify(kinds)

    def watch(self, watcher: Any, kinds: int) -> None:
        self.watchers.add(watcher, kinds)

    def unwatch(self, watcher: Any) -> None:
        self.watchers.remove(watcher)

    def rise(self, offset: int, written_bytes: int | None) -> None:
        self.mark.offset = offset
        self.notify(Change.HIGH_WATERMARK)

    @property
    def own_end_offset(self) -> int:
        return int(self.log.log_end_offset)

    @property
    def readable_bytes(self) -> int:
        return RECORD_BYTES * int(self.high_watermark)

    @property
    def last_stable_offset(self) -> int:
        return int(self.high_watermark)

    def unavailable(self, offset: int) -> KafkaError:
        return KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{offset} is not committed")

    def read(self, limits: ReadLimits) -> PartitionRead:
        return self._read(limits, self.high_watermark)

    def is_read_up_to(self, offset: int, isolation: int, leader_epoch: int) -> bool:
        return self.is_readable and offset == int(self.high_watermark)

    def read_for_replica(self, limits: ReadLimits) -> PartitionRead:
        return self._read(limits, self.log.log_end_offset)

    def _read(self, limits: ReadLimits, end_offset: int) -> PartitionRead:
        log, offset = self.log, limits.offset
        if not self.is_readable:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log is offline")
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is not there")
        fits = max(limits.max_bytes // RECORD_BYTES, 1 if limits.min_one_message else 0)
        size = max(0, min(end_offset - offset, fits))
        return PartitionRead(
            b"r" * RECORD_BYTES * size,
            RECORD_BYTES * size,
            next_offset=offset + size,
            reaches_end=offset + size >= end_offset,
            high_watermark=self.high_watermark,
            last_stable_offset=self.high_watermark,
            log_start_offset=log.log_start_offset,
        )

    # For both

    @property
    def high_watermark(self) -> Any:
        """The high watermark as an offset, as in a Partition; a Replica has an object."""
        return self.mark.offset

    # Events

    def append(self, now_ms: int) -> None:
        """Append a record, which is on the disk at once."""
        self.log.log_end_offset += 1
        self.appended_ms.append(now_ms)
        self.notify(Change.LOG_END)

    def flush(self) -> None:
        self.in_sync.advance_high_watermark(self.own_end_offset)

    def raise_log_start(self) -> None:
        self.log.log_start_offset += 1
        self.notify(Change.LOG_START)

    def set_readable(self, *, is_readable: bool) -> None:
        self.is_readable = is_readable
        self.notify(Change.ERROR if not is_readable else Change.ROLE)

    @property
    def truth(self) -> Truth:
        log = self.log
        return Truth(self.is_readable, self.high_watermark, log.log_start_offset, log.log_end_offset, self.is_held_back)


class _ReplicaView:
    """The same partition for `InSyncReplicas`, whose high watermark is an object with an offset."""

    def __init__(self, partition: SmallPartition) -> None:
        object.__setattr__(self, "_partition", partition)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_partition":
            raise AttributeError(name)
        return self._partition.mark if name == "high_watermark" else getattr(self._partition, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._partition, name, value)

    def __getstate__(self) -> object:
        return self._partition

    def __setstate__(self, state: object) -> None:
        object.__setattr__(self, "_partition", state)


def _as_replica(partition: SmallPartition) -> Any:
    return _ReplicaView(partition)
