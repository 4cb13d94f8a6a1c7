"""Settings of the clients that read: of consumers, with or without handlers, and of a reader of ranges."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from datetime import datetime
from typing import Any, Final, Generic, Literal, get_args

from tailrace.client.names import Names, several
from tailrace.client.serialization import K, V
from tailrace.client.setting_fields import alias, function, invalid, number
from tailrace.client.settings import ClientSettings
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.views import FAN_OUTS

GroupProtocol = Literal["classic", "consumer"]
Isolation = Literal["read_uncommitted", "read_committed"]
Reset = Literal["earliest", "latest", "none"]
Until = Literal["end"] | int | datetime | Mapping[tuple[str, int], int]
"""An end of reading: of the logs at the first poll, at an offset, at the first record of a time, or by partition."""

ASSIGNMENT_STRATEGIES: Final = ("range", "roundrobin")
GROUP_PROTOCOLS: Final[tuple[str, ...]] = get_args(GroupProtocol)
AUTO_SLOTS: Final = "auto"

_CLASSIC_ALONE: Final = ("partition_assignment_strategy", "session_timeout_ms", "heartbeat_interval_ms")
"""Settings of a member that KIP-848 has moved to the coordinator."""

_ISOLATION_LEVELS: Final = {"read_uncommitted": 0, "read_committed": 1}
_RESETS: Final = {"earliest": -2, "latest": -1, "none": None}
_RESETS_ELSEWHERE: Final = {
    **dict.fromkeys(("smallest", "beginning"), "earliest"),
    **dict.fromkeys(("largest", "end"), "latest"),
    "error": "none",
}
"""Words of librdkafka for auto.offset.reset, and Kafka's words."""


@dataclass(frozen=True)
class ReaderSettings(ClientSettings):
    """The settings of all consumers, for the reading of topics and the membership in a group."""

    _: KW_ONLY
    group: str | None = None
    """The group that divides the topics among its members and keeps their progress. None: the consumer reads alone, and
    commits nothing."""
    group_id: str | None = alias("group")
    group_protocol: GroupProtocol | None = None
    """The protocol of the group. None: `consumer` (KIP-848) if the cluster has it, else `classic`; also `classic` if a
    setting of the classic protocol differs from its default."""
    group_remote_assignor: str | None = None
    """The assignor in the coordinator, `uniform` or `range`, of groups of the protocol `consumer`. None: the first
    assignor of the broker."""
    topics: Names = ()
    """Topics and views to read, as a call of `subscribe` would say."""
    auto_offset_reset: Reset = "latest"
    """The start in a partition without a committed offset, or whose offset does not exist any more: the first record,
    the end, or an error with `none`."""
    session_timeout_ms: int = 45_000
    """The silence after which the coordinator removes a member of the classic protocol."""
    heartbeat_interval_ms: int = 3_000
    """The time between two heartbeats of a member of the classic protocol; mostly a third of `session_timeout_ms`."""
    max_poll_interval_ms: int = 300_000
    """A consumer that is not polled for this time leaves its group, and joins again at its next poll."""
    max_poll_records: int = number(500, least=1, why="a poll returns at least one record")
    """The most records that a poll returns."""
    partition_assignment_strategy: Sequence[str] = ("range",)
    """The assignors that a member of the classic protocol can use, `range` and `roundrobin`, the best first."""
    group_instance_id: str | None = None
    """The name of a static member: a new process with this name gets the partitions of the old process, if it joins
    before the session ends."""
    isolation: Isolation = "read_uncommitted"
    """Whether records of transactions are read before they are committed. With `read_committed`, reading stops before
    the first open transaction, and aborted records are left out."""
    isolation_level: Isolation | None = alias("isolation")
    on_corrupt: Literal["raise", "skip"] = "raise"
    """The answer to a batch that cannot be decoded: raise CorruptRecords, or skip the batch and log a line."""
    fetch_min_bytes: int = 1
    """The bytes that a broker collects before it answers a fetch."""
    fetch_max_wait_ms: int = 500
    """The longest wait of a broker for `fetch_min_bytes`."""
    fetch_max_bytes: int = 52_428_800
    """The size of an answer to a fetch; a larger first batch is returned whole."""
    max_partition_fetch_bytes: int = 1_048_576
    """The part of one partition in an answer to a fetch; a larger first batch is returned whole."""
    client_rack: str = ""
    """The rack of the consumer, to read from the replica in this rack (KIP-392). Empty: from leaders."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "topics", several(self.topics))
        object.__setattr__(self, "partition_assignment_strategy", tuple(self.partition_assignment_strategy))
        if self.auto_offset_reset not in _RESETS:
            meant = _RESETS_ELSEWHERE.get(self.auto_offset_reset)
            hint = f"say {meant!r}" if meant else f"known are {', '.join(_RESETS)}"
            raise invalid(f"auto.offset.reset {self.auto_offset_reset!r}; {hint}")
        unknown = [name for name in self.partition_assignment_strategy if name not in ASSIGNMENT_STRATEGIES]
        if self.group is not None and (unknown or not self.partition_assignment_strategy):
            known = ", ".join(ASSIGNMENT_STRATEGIES)
            detail = f"partition.assignment.strategy {', '.join(unknown)!r}; known are {known}"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, detail)
        self._check_group_protocol()
        self._check_times()
        parse_isolation(self.isolation)
        _check_on_corrupt(self.on_corrupt)

    def _check_group_protocol(self) -> None:
        """Raise KafkaError INVALID_CONFIG for an unknown protocol, and for a setting of the other protocol."""
        if self.group_protocol not in (None, *GROUP_PROTOCOLS):
            detail = f"group.protocol {self.group_protocol!r}; known are {', '.join(GROUP_PROTOCOLS)}"
            raise invalid(detail)
        changed = self.classic_settings
        if self.group_protocol == "consumer" and changed:
            name = changed[0].replace("_", ".")
            detail = (
                f"{name} cannot be set with group.protocol=consumer: the coordinator decides; leave the setting out"
            )
            raise invalid(detail)
        if self.group_protocol == "classic" and self.group_remote_assignor is not None:
            detail = (
                "group.remote.assignor needs group.protocol=consumer; a classic group has partition.assignment.strategy"
            )
            raise invalid(detail)

    def _check_times(self) -> None:
        """Raise KafkaError INVALID_CONFIG for times that contradict each other."""
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise invalid(
                f"heartbeat.interval.ms {self.heartbeat_interval_ms}; below session.timeout.ms"
                f" {self.session_timeout_ms}, mostly a third of it"
            )

    @property
    def classic_settings(self) -> list[str]:
        """The settings of the classic protocol alone that differ from their defaults."""
        defaults = {setting.name: setting.default for setting in fields(self)}
        return [name for name in _CLASSIC_ALONE if getattr(self, name) != defaults[name]]

    @property
    def first_group_protocol(self) -> str:
        """The protocol by which a member tries to join first."""
        if self.group_protocol is not None:
            return self.group_protocol
        return "classic" if self.classic_settings else "consumer"

    @property
    def shares_by_key(self) -> bool:
        """Whether the members of the group share partitions by key, through views of the topics."""
        return False

    @property
    def slots_of_a_partition(self) -> int | None:
        """The slots of each partition for members that share by key; None: by the number of partitions."""
        return None

    @property
    def reset(self) -> int | None:
        """The offset of auto.offset.reset, as in ListOffsets; None: no committed offset is an error."""
        return _RESETS[self.auto_offset_reset]

    @property
    def isolation_number(self) -> int:
        """The isolation level as in a Fetch request."""
        return parse_isolation(self.isolation)


def parse_isolation(name: str) -> int:
    """The number of this isolation level. Raises KafkaError(INVALID_REQUEST)."""
    if name not in _ISOLATION_LEVELS:
        detail = f"isolation level {name!r}; known are {', '.join(_ISOLATION_LEVELS)}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
    return _ISOLATION_LEVELS[name]


def _check_on_corrupt(choice: str) -> None:
    if choice not in ("raise", "skip"):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"on_corrupt {choice!r}; it is raise or skip")


@dataclass(frozen=True)
class ConsumerSettings(ReaderSettings, Generic[K, V]):
    """The settings of a consumer."""

    _: KW_ONLY
    until: Until | None = None
    """The end of reading, for a consumer without a group: "end" for the ends at the first poll, an offset, a datetime,
    or offsets by partition. None: reading has no end."""
    key_deserializer: Callable[[bytes], K] | None = function()
    """A function of the bytes of a key that returns the key; None: keys are bytes."""
    value_deserializer: Callable[[bytes], V] | None = function()
    """A function of the bytes of a value that returns the value; None: values are bytes."""
    enable_auto_commit: bool = True
    """Whether the offsets of returned records are committed every `auto_commit_interval_ms` and by `close`."""
    auto_commit_interval_ms: int = 5_000
    """The time between two auto commits."""
    allow_individual_commit: bool = False
    """Whether members of the group share partitions by key (KIP-X): each key has one reader at a time, and a partition
    may have many."""
    client_id: str = "tailrace-consumer"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_until(self.until, has_group=self.group is not None)
        if self.allow_individual_commit and self.group is None:
            raise KafkaError(
                ErrorCode.INVALID_GROUP_ID, "allow.individual.commit needs a group, whose members share by key"
            )

    @property
    def shares_by_key(self) -> bool:
        return self.allow_individual_commit


def _check_until(until: object, *, has_group: bool) -> None:
    """Raise KafkaError INVALID_CONFIG unless this is an end of reading, or None."""
    if until is None:
        return
    if has_group:
        detail = "until is for a consumer without a group, as the members of a group read on together"
        raise invalid(f"{detail}; poll(seconds) returns what has come")
    offsets = list(until.values()) if isinstance(until, Mapping) else [until]
    are_offsets = all(isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0 for offset in offsets)
    if until != "end" and not isinstance(until, datetime) and not are_offsets:
        raise invalid(f'until {until!r}; say "end", a datetime, an offset, or an offset by partition')


@dataclass(frozen=True)
class KeyedConsumerSettings(ReaderSettings):
    """The settings of a keyed consumer."""

    _: KW_ONLY
    decode: Callable[[bytes], Any] | None = function()
    """A function of the bytes of a value that returns the handler's value. None: the handler gets bytes; it also gets
    bytes, and the exception as `fault`, if the function raises."""
    auto_offset_reset: Reset = "earliest"
    """The start in a partition without committed progress: the first record, the end, or an error with `none`."""
    auto_commit_interval_ms: int = number(1_000, least=1)
    """The time between two commits."""
    max_collected_ranges: int = 256
    """The most holes in the done records of a partition that a commit has; see the guide to key ranges."""
    max_records_in_hand: int | None = number(None, least=1, is_ours=True)
    """The most records that are read and not done. None: 16 for each lane, and 1,000 at least."""
    max_bytes_in_hand: int = number(64 << 20, least=1, is_ours=True)
    """The most bytes of records that are read and not done."""
    grace_ms: int = number(10_000, is_ours=True)
    """The time that running handlers have to finish when their partitions leave or the consumer stops; at most
    `max_poll_interval_ms`."""
    slots: int | Literal["auto"] | None = None
    """The number of slots by which members share each partition by key: 2, 4, 8, ... or 256, or "auto" for a number
    that fits the topic. None: a partition has one member."""
    handler_timeout_ms: int | None = number(None, least=1, is_ours=True)
    """The longest time of a call of the handler; a longer call has failed. None: calls have no limit."""
    breaker_failure_percent: int | None = number(50, least=1, is_ours=True)
    """The breaker pauses all handlers when more than this share of the last calls have failed: 1 to 99. None: there is
    no breaker."""
    breaker_min_calls: int = number(20, least=1, is_ours=True)
    """The calls since the start or the last outage before which the breaker pauses nothing."""
    breaker_backoff_ms: int = number(1_000, least=1, is_ours=True)
    """The first pause of the breaker; each further pause is twice as long."""
    breaker_backoff_max_ms: int = number(30_000, least=1, is_ours=True)
    """The longest pause of the breaker; at least `breaker_backoff_ms`."""
    client_id: str = "tailrace-keyed-consumer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.group or not self.topics:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a keyed consumer has a group, and topics to read in it")
        if self.slots not in (None, AUTO_SLOTS, *FAN_OUTS) or isinstance(self.slots, bool):
            known = ", ".join(map(str, FAN_OUTS))
            detail = f"slots {self.slots!r}; known are {known}, and {AUTO_SLOTS!r} for a number that fits the topic"
            raise invalid(detail)
        if self.grace_ms > self.max_poll_interval_ms:
            detail = f"grace_ms {self.grace_ms}; at most max.poll.interval.ms, {self.max_poll_interval_ms}"
            raise invalid(detail)
        self._check_breaker()

    def _check_breaker(self) -> None:
        if self.breaker_failure_percent is not None and self.breaker_failure_percent > 99:
            detail = f"breaker_failure_percent {self.breaker_failure_percent}; 1 to 99, or None for no breaker"
            raise invalid(detail)
        if self.breaker_backoff_ms > self.breaker_backoff_max_ms:
            detail = (
                f"breaker_backoff_ms {self.breaker_backoff_ms}; at most breaker_backoff_max_ms,"
                f" {self.breaker_backoff_max_ms}"
            )
            raise invalid(detail)

    @property
    def shares_by_key(self) -> bool:
        return self.slots is not None

    @property
    def slots_of_a_partition(self) -> int | None:
        return self.slots if isinstance(self.slots, int) else None


@dataclass(frozen=True)
class RangedFetchSettings(ClientSettings):
    """The settings of a reader of ranges."""

    _: KW_ONLY
    isolation: Isolation = "read_uncommitted"
    """Whether records of transactions are read before they are committed, as for a consumer."""
    isolation_level: Isolation | None = alias("isolation")
    max_bytes: int = number(8_388_608, is_ours=True)
    """The size of an answer to a fetch; a larger first batch is returned whole."""
    max_wait_ms: int = number(500, is_ours=True)
    """The longest wait of a broker for records."""
    timeout_ms: int = number(120_000, is_ours=True)
    """The time without progress after which a range ends with an error."""
    rack: str = ""
    """The rack of the reader, to read from the replica in this rack (KIP-392). Empty: from leaders."""
    on_corrupt: Literal["raise", "skip"] = "raise"
    """The answer to a batch that cannot be decoded: raise CorruptRecords, or leave the batch out and log a line."""
    client_id: str = "tailrace-ranged-fetch"

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_isolation(self.isolation)
        _check_on_corrupt(self.on_corrupt)
