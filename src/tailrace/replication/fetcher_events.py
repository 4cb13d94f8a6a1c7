"""Events and effects of a `replication.replica_fetcher` machine, and their values. Times are monotonic ms."""

from dataclasses import dataclass
from typing import NamedTuple

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import TopicId
from tailrace.model.machines import Tick
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.protocol.schema import Buffer


class PartitionKey(NamedTuple):
    """A partition by topic id: a topic that was created again under the same name has other keys."""

    topic_id: TopicId
    partition: int


class Position(NamedTuple):
    """The position of a follower's log; every record below `end_offset` is flushed."""

    end_offset: int
    last_epoch: int
    """The epoch of the last record; -1 for a log without records."""
    log_start_offset: int
    high_watermark: int


class Wanted(NamedTuple):
    """A partition of a fetch."""

    key: PartitionKey
    leader_epoch: int
    position: Position


class FetchAnswer(NamedTuple):
    """The leader's answer for one partition."""

    key: PartitionKey
    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    records: Buffer
    """The records, perhaps as a view: valid until the effects of the step with this answer are carried out."""
    diverging: OffsetAndEpoch | None = None
    """The end of the largest epoch that both logs may share. With `diverging` the answer has nothing else."""
    checked_from: int | None = None
    """The leader has compared the headers of batches from this offset on with their records; None: the leader does not
    say so."""
    deleted_keys: bytes = b""
    """The leader's note of deleted keys, if there is news."""


# Events


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """Fetch this partition from now on, or in another epoch: with the next step, see `next_deadline_ms`."""

    key: PartitionKey
    leader_epoch: int
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfollow:
    """Fetch this partition no more."""

    key: PartitionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answers to the fetch in flight; None: the fetch has failed, or its answer cannot be used."""

    answers: tuple[FetchAnswer, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A `Store`, `Cut` or `Restart` is done; `position` is the position of the stored log."""

    key: PartitionKey
    leader_epoch: int
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFailed:
    """A `Store`, `Cut` or `Restart` was not possible. `is_final`: later attempts will fail too."""

    key: PartitionKey
    leader_epoch: int
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartKnown:
    """The leader has answered an `AskLogStart`."""

    key: PartitionKey
    leader_epoch: int
    log_start_offset: int


Event = Follow | Unfollow | Answered | Stored | StoreFailed | LogStartKnown | Tick


# Effects


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFetch:
    """Fetch the wanted partitions from the leader; then `Answered`.

    The wanted partitions are an ordered map that the host keeps, and that outlives a fetch without an answer. Take
    `forgotten` out of the map, then put `changed` at its end: the order of the map is the order of the fetch.
    Partitions may be in both, by rule 9.
    """

    changed: tuple[Wanted, ...]
    """Partitions that are wanted for the first time, at another position or in another epoch; or as before, but now at
    the end."""
    forgotten: tuple[PartitionKey, ...]
    """Partitions that are no longer wanted, or that are also in `changed` because their last answers were not
    stored."""
    has_more: bool
    """Whether other changes follow with the next fetch: the leader is to answer this fetch at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWait:
    """Ask the leader to answer the fetch in flight now, if the fetch waits there: the next fetch has more
    partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Append and flush the records, take the leader's high watermark and log start; then `Stored`."""

    key: PartitionKey
    leader_epoch: int
    answer: FetchAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Cut the log where it diverges from the leader's log, see `follower_replica.cut_offset`; then `Stored`."""

    key: PartitionKey
    leader_epoch: int
    diverging: OffsetAndEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Drop the log, and begin a new log where the leader's log begins; then `Stored`."""

    key: PartitionKey
    leader_epoch: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskLogStart:
    """Ask the leader for the start of its log (ListOffsets); then `LogStartKnown`, if the leader answers."""

    key: PartitionKey
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRefusal:
    """Log that this partition is refused for this reason, and for how long."""

    key: PartitionKey
    leader_epoch: int
    error: ErrorCode
    for_ms: int


Effect = SendFetch | EndWait | Store | Cut | Restart | AskLogStart | ReportRefusal
