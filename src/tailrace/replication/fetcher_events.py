"""Events and effects of a `replication.replica_fetcher` machine, and their values. Times are monotonic ms."""

from dataclasses import dataclass
from typing import NamedTuple

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import TopicId
from tailrace.model.machines import Tick
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.protocol.schema import Buffer


class PartitionKey(NamedTuple):
    """A partition of one topic, whatever other topics have had its name."""

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
    """Views, perhaps: valid for as long as the step that they cause is carried out."""
    diverging: OffsetAndEpoch | None = None
    """The end of the largest epoch that both logs may share; there is nothing else in the answer then."""
    checked_from: int | None = None
    """The leader has compared the headers of batches from here on with their records; None: it does not say so."""


# Events


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """Fetch this partition from now on, or in another epoch: with the next step, see `next_deadline_ms`."""

    key: PartitionKey
    leader_epoch: int
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfollow:
    """Fetch it no more."""

    key: PartitionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answer to the fetch in flight; None: it failed, or its answer cannot be used."""

    answers: tuple[FetchAnswer, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A `Store` or `Cut` is done; `position` is that of the stored log."""

    key: PartitionKey
    leader_epoch: int
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFailed:
    """A `Store` or `Cut` was not possible. `is_final`: nor will another one be."""

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
    """Wanted for the first time, at another position or in another epoch; or as before, but at the end."""
    forgotten: tuple[PartitionKey, ...]
    """No longer wanted, or wanted anew: their last answers were not stored."""
    has_more: bool
    """Whether other changes follow with the next fetch: the leader is to answer this fetch at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWait:
    """Ask the leader to answer the fetch in flight now, if it waits there: the next fetch has more to ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Append and flush the records, take the leader's high watermark and log start; then `Stored`."""

    key: PartitionKey
    leader_epoch: int
    answer: FetchAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Cut the log off where it parts from the leader's, see `follower_replica.cut_offset`; then `Stored`."""

    key: PartitionKey
    leader_epoch: int
    diverging: OffsetAndEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Drop the log, and begin where the leader's begins; then `Stored`."""

    key: PartitionKey
    leader_epoch: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskLogStart:
    """Ask the leader for the start of its log (ListOffsets); then `LogStartKnown`, if it answers."""

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
