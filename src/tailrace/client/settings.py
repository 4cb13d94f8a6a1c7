"""Settings of the clients: a frozen value for each kind of client, checked by its constructor.

1. The constructor of a client takes the keywords of its settings class, or a mapping of Kafka's dotted names
   (`construction.made_of`). The parts of a client get the value.
2. `ClientSettings` is the part that all clients share: addresses, the client's name, waits and retries. `Router` needs
   nothing else, so encryption and authentication belong there. `on` takes them over for another kind of client.
3. `setting_fields` has the rules for names, kinds and ranges. A number is at least 0 unless its field says otherwise.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from datetime import datetime
from typing import Any, Final, Generic, Literal, Self, get_args

from tailrace.client.errors import several
from tailrace.client.serialization import K, V
from tailrace.client.setting_fields import INT64, alias, checked, function, invalid, number, resolve_aliases
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.views import FAN_OUTS
from tailrace.net.connection import parse_addresses
from tailrace.protocol.records.compression import Codec

Partitioner = Callable[[str, bytes | None, int], int]
"""(topic, key, number of partitions) -> partition."""

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
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

_ACKS: Final = {"all": -1, "-1": -1, "0": 0, "1": 1}
_ISOLATION_LEVELS: Final = {"read_uncommitted": 0, "read_committed": 1}
_RESETS: Final = {"earliest": -2, "latest": -1, "none": None}


@dataclass(frozen=True)
class ClientSettings:
    """The settings that every client has. An administrator's client has no other settings.

    `request_timeout_ms` bounds a request; `default_api_timeout_ms` a whole call with its retries; between retries it
    waits `retry_backoff_ms`, twice as long each time, at most `retry_backoff_max_ms`. `bootstrap_timeout_ms` is the
    longest wait for the first answer of the cluster: after that, its address is probably wrong.
    """

    bootstrap_servers: str | Sequence[str] | Mapping[str, object]
    """`host:port`, more addresses in a list or behind commas. A constructor of a client also takes a mapping of all
    settings here, by Kafka's dotted names."""
    _: KW_ONLY
    client_id: str = "tailrace-admin"
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = number(300_000, most=INT64)
    socket_connection_setup_timeout_ms: int = 10_000
    bootstrap_timeout_ms: int = 10_000

    def __post_init__(self) -> None:
        """Check every field. Raises KafkaError, mostly INVALID_CONFIG."""
        resolve_aliases(self)
        for setting in fields(self):
            value = getattr(self, setting.name)
            if (kept := checked(setting, value)) is not value:
                object.__setattr__(self, setting.name, kept)
        object.__setattr__(self, "bootstrap_servers", _addresses(self.bootstrap_servers))
        parse_addresses(self.servers)

    @property
    def servers(self) -> str:
        """The addresses of `bootstrap_servers`, with commas between."""
        return str(self.bootstrap_servers)

    @classmethod
    def on(cls, client: "ClientSettings", **others: Any) -> Self:
        """Settings of this class for the cluster of another client, with its waits; the name is that of this class."""
        shared = {setting.name: getattr(client, setting.name) for setting in fields(ClientSettings)}
        del shared["client_id"]
        return cls(**(shared | others))


def _addresses(given: object) -> str:
    """The addresses as a text. Raises KafkaError INVALID_CONFIG."""
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        raise invalid("bootstrap.servers is a mapping; only the constructor of a client takes its settings so")
    if isinstance(given, Iterable) and not isinstance(given, bytes):
        addresses = list(given)
        if all(isinstance(address, str) for address in addresses):
            return ",".join(addresses)
    raise invalid(f"bootstrap.servers {given!r}; say 'host:port', or a list of such texts")


@dataclass(frozen=True)
class ProducerSettings(ClientSettings, Generic[K, V]):
    """The settings of a producer."""

    _: KW_ONLY
    acks: Literal["all", "-1", "0", "1", -1, 0, 1] = "all"
    compression: Compression | Codec | None = None
    compression_type: Compression | None = alias("compression")
    linger_ms: int = 5
    batch_size: int = 16_384
    buffer_memory: int = number(33_554_432, most=INT64)
    delivery_timeout_ms: int = 120_000
    max_block_ms: int = 60_000
    max_request_size: int = 1_048_576
    idempotent: bool | None = None
    enable_idempotence: bool | None = alias("idempotent")
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    key_serializer: Callable[[K], bytes] | None = function()
    value_serializer: Callable[[V], bytes] | None = function()
    partitioner: Partitioner | None = function()
    client_id: str = "tailrace-producer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if str(self.acks) not in _ACKS:
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={self.acks!r}; say all, 1 or 0")
        if self.is_idempotent and self.acks_number != -1:
            detail = f"acks={self.acks}: an idempotent producer needs acks=all"
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, detail)
        if self.transactional_id is not None and not (self.is_idempotent and self.transactional_id):
            detail = "transactional_id needs at least one character, and an idempotent producer with acks=all"
            raise invalid(detail)
        parse_codec(self.compression)

    @property
    def acks_number(self) -> int:
        """The number in a Produce request: -1 for all."""
        return _ACKS[str(self.acks)]

    @property
    def is_idempotent(self) -> bool:
        """Whether the producer numbers its batches: by default with acks=all."""
        return self.acks_number == -1 if self.idempotent is None else self.idempotent

    def buffer_full(self) -> KafkaError:
        """The error of a record for which there was no space in time."""
        detail = f"buffer.memory {self.buffer_memory} stayed full for max.block.ms {self.max_block_ms}"
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail)


def parse_codec(name: str | Codec | None) -> Codec:
    """The codec of this name; no codec for None. Raises KafkaError(UNSUPPORTED_COMPRESSION_TYPE) that lists the
    names."""
    if name is None or isinstance(name, Codec):
        return name or Codec.NONE
    codec = Codec.__members__.get(str(name).upper())
    if codec is None:
        known = ", ".join(codec.name.lower() for codec in Codec)
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {name!r}; known are {known}")
    return codec


@dataclass(frozen=True)
class ReaderSettings(ClientSettings):
    """The settings of all consumers, for the reading of topics and the membership in a group.

    `group_protocol` is consumer (KIP-848), classic, or by default what the server offers: consumer, unless it is older,
    or partition_assignment_strategy, session_timeout_ms or heartbeat_interval_ms differ from their defaults: these
    settings are the classic protocol's alone. `group_remote_assignor` is uniform or range.
    """

    _: KW_ONLY
    group: str | None = None
    group_id: str | None = alias("group")
    group_protocol: GroupProtocol | None = None
    group_remote_assignor: str | None = None
    topics: Iterable[str] = ()
    auto_offset_reset: Reset = "latest"
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = number(500, least=1, why="a poll returns at least one record")
    partition_assignment_strategy: Sequence[str] = ("range",)
    group_instance_id: str | None = None
    isolation: Isolation = "read_uncommitted"
    isolation_level: Isolation | None = alias("isolation")
    on_corrupt: Literal["raise", "skip"] = "raise"
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 52_428_800
    max_partition_fetch_bytes: int = 1_048_576
    client_rack: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "topics", several(self.topics))
        object.__setattr__(self, "partition_assignment_strategy", tuple(self.partition_assignment_strategy))
        if self.auto_offset_reset not in _RESETS:
            detail = f"auto.offset.reset {self.auto_offset_reset!r}; known are {', '.join(_RESETS)}"
            raise invalid(detail)
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
        changed = self._classic_settings
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
    def _classic_settings(self) -> list[str]:
        """The settings of the classic protocol alone that differ from their defaults."""
        defaults = {setting.name: setting.default for setting in fields(self)}
        return [name for name in _CLASSIC_ALONE if getattr(self, name) != defaults[name]]

    @property
    def first_group_protocol(self) -> str:
        """The protocol by which a member tries to join first."""
        if self.group_protocol is not None:
            return self.group_protocol
        return "classic" if self._classic_settings else "consumer"

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
    """The settings of a consumer. With `until`, for a consumer without a group, reading has an end: "end" (the ends at
    the first poll), a datetime, an offset, or an offset by partition."""

    _: KW_ONLY
    until: Until | None = None
    key_deserializer: Callable[[bytes], K] | None = function()
    value_deserializer: Callable[[bytes], V] | None = function()
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    allow_individual_commit: bool = False
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
        raise invalid("until is for a consumer without a group: the members of a group read on together")
    offsets = list(until.values()) if isinstance(until, Mapping) else [until]
    are_offsets = all(isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0 for offset in offsets)
    if until != "end" and not isinstance(until, datetime) and not are_offsets:
        raise invalid(f'until {until!r}; say "end", a datetime, an offset, or an offset by partition')


@dataclass(frozen=True)
class KeyedConsumerSettings(ReaderSettings):
    """The settings of a keyed consumer."""

    _: KW_ONLY
    decode: Callable[[bytes], Any] | None = function()
    auto_offset_reset: Reset = "earliest"
    auto_commit_interval_ms: int = number(1_000, least=1)
    max_collected_ranges: int = 256
    max_records_in_hand: int | None = number(None, least=1, is_ours=True)
    max_bytes_in_hand: int = number(64 << 20, least=1, is_ours=True)
    grace_ms: int = number(10_000, is_ours=True)
    slots: int | str | None = None
    handler_timeout_ms: int | None = number(None, least=1, is_ours=True)
    breaker_failure_percent: int | None = number(50, least=1, is_ours=True)
    breaker_min_calls: int = number(20, least=1, is_ours=True)
    breaker_backoff_ms: int = number(1_000, least=1, is_ours=True)
    breaker_backoff_max_ms: int = number(30_000, least=1, is_ours=True)
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
    """The settings of a reader of ranges. `timeout_ms` without progress end a range."""

    _: KW_ONLY
    isolation: Isolation = "read_uncommitted"
    isolation_level: Isolation | None = alias("isolation")
    max_bytes: int = number(8_388_608, is_ours=True)
    max_wait_ms: int = number(500, is_ours=True)
    timeout_ms: int = number(120_000, is_ours=True)
    rack: str = ""
    on_corrupt: Literal["raise", "skip"] = "raise"
    client_id: str = "tailrace-ranged-fetch"

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_isolation(self.isolation)
        _check_on_corrupt(self.on_corrupt)
