"""The options of `format("tailrace")`, with the names, defaults and meaning of Spark's Kafka connector.

Spark passes them with lowercased names. All options are checked during planning, on the driver, so that a mistake fails
the query at once with the option's name, and not a task with a Java stack trace.
"""

import difflib
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import check_sink
from tailrace.spark.offsets import EARLIEST, LATEST, parse_assignment, parse_offsets

_log = logging.getLogger(__name__)

REFUSED = {
    "kafka.auto.offset.reset": "say startingOffsets and failOnDataLoss instead",
    "kafka.enable.auto.commit": "progress is kept in the query's checkpoint",
    "kafka.key.deserializer": "keys are always binary; cast them in a DataFrame operation",
    "kafka.value.deserializer": "values are always binary; cast them in a DataFrame operation",
    "kafka.key.serializer": "keys are string or binary columns",
    "kafka.value.serializer": "values are string or binary columns",
    "kafka.interceptor.classes": "interceptors are Java classes",
    "kafka.partitioner.class": "partitioners are Java classes; fill the column `partition` instead",
    "kafka.transactional.id": "say exactlyOnce=true; the transactions of its tasks have ids of their own",
    "group.id": "say kafka.group.id",
}

_OF_SECURITY = ("kafka.ssl.", "kafka.sasl.", "kafka.security.")
"""Options that are refused, not ignored with a warning: the connection would be neither encrypted nor authenticated."""

Kind = Literal["batch read", "streaming read", "write"]

_EVERYWHERE = ("kafka.bootstrap.servers", "kafka.security.protocol", "includeHeaders")
_READS = (
    "kafka.client.rack",
    "kafka.isolation.level",
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "minPartitions",
    "maxRecordsPerPartition",
)
_STREAMING_READS = ("kafka.group.id", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_WRITES = (
    "kafka.acks",
    "kafka.compression.type",
    "kafka.max.request.size",
    "kafka.transaction.timeout.ms",
    "topic",
    "exactlyOnce",
    "sinkId",
    "sinkTakesOver",
)

_NAMES: Mapping[Kind, frozenset[str]] = {
    "batch read": frozenset((*_EVERYWHERE, *_READS)),
    "streaming read": frozenset((*_EVERYWHERE, *_READS, *_STREAMING_READS)),
    "write": frozenset((*_EVERYWHERE, *_WRITES)),
}
"""The options that have an effect, or are refused where they would have none."""

_OF_ANOTHER_KIND = {
    name.lower(): f"option {name} is for {whose} and is ignored"
    for names, whose in ((_READS, "reads"), (_STREAMING_READS, "streaming reads"), (_WRITES, "writes"))
    for name in names
}

_SPARKS_OWN = frozenset(("path", "checkpointlocation", "queryname"))

TimestampStrategy = Literal["error", "latest"]
Isolation = Literal["read_uncommitted", "read_committed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The partitions to read: exactly one of the three is set."""

    assigned: frozenset[TopicPartition] | None = None
    topics: tuple[str, ...] | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRangeLimit:
    """One end of a read: a timestamp (ms), a timestamp or an offset per partition, or an end of the log.

    `offsets` and `timestamps` may use -1 (latest) and -2 (earliest) for an offset.
    """

    everywhere: int = LATEST
    timestamp: int | None = None
    timestamps: Mapping[TopicPartition, int] | None = None
    offsets: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a read."""

    bootstrap_servers: str
    subscription: Subscription
    starting: OffsetRangeLimit
    ending: OffsetRangeLimit
    by_timestamp_strategy: TimestampStrategy = "error"
    fail_on_data_loss: bool = True
    include_headers: bool = False
    fetch_timeout_ms: int = 120_000
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    min_partitions: int = 0
    max_records_per_partition: int = 0
    group_id: str | None = None
    isolation: Isolation = "read_uncommitted"
    """read_committed reads up to the last stable offset, without records of aborted transactions."""
    client_rack: str = ""
    """The rack of the executors: the cluster may name a replica there to read from (KIP-392)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a write."""

    bootstrap_servers: str
    topic: str | None = None
    include_headers: bool = False
    compression: str = "none"
    max_request_size: int = 1_048_576
    """A larger row fails the task; the topic's max.message.bytes is a further limit."""
    transactions: "SinkTransactions | None" = None
    """With exactlyOnce=true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTransactions:
    """The options of a write that repeats nothing."""

    sink_id: str | None = None
    """None: the id of the streaming query; for a batch write one that no other write has."""
    takes_over: bool = False
    """Whether the sink is taken from the checkpoint that has written to it before."""
    timeout_ms: int = 900_000
    """A transaction that is open for longer is aborted."""
    checkpoint: str | None = None
    """The place of the query's checkpoint, if it is known."""


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a read. Raises KafkaError(INVALID_REQUEST) that names the option and the way out."""
    given = _Given(options)
    given.refuse_unsupported()
    given.warn_of_ignored("streaming read" if streaming else "batch read")
    default_start = LATEST if streaming else EARLIEST
    starting = _position(given, "starting", default_start)
    ending = _position(given, "ending", LATEST)
    if not streaming and starting.everywhere == LATEST and starting == OffsetRangeLimit(everywhere=LATEST):
        raise fault("startingOffsets", "a batch read cannot start at latest: it would read nothing")
    if streaming and ending != OffsetRangeLimit(everywhere=LATEST):
        raise fault("endingOffsets", "a streaming read has no end; use trigger(availableNow=True) to stop at today's")
    if not streaming and starting.offsets is not None and LATEST in starting.offsets.values():
        raise fault("startingOffsets", "-1 is latest, and a batch read cannot start there: it would read nothing")
    if ending.everywhere == EARLIEST:
        raise fault("endingOffsets", "a read cannot end at earliest")
    _check_same_partitions(starting, ending)
    least, most = given.positive("minOffsetsPerTrigger"), given.positive("maxOffsetsPerTrigger")
    if least and most and least > most:
        raise fault(
            "minOffsetsPerTrigger", f"{least} is more than maxOffsetsPerTrigger, {most}: no batch could have both"
        )
    return SourceOptions(
        bootstrap_servers=given.required("kafka.bootstrap.servers", 'for example "127.0.0.1:9092"'),
        subscription=_subscription(given),
        starting=starting,
        ending=ending,
        by_timestamp_strategy=_strategy(given),
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        include_headers=given.boolean("includeHeaders", False),
        fetch_timeout_ms=given.positive("kafkaConsumer.pollTimeoutMs") or 120_000,
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=given.duration_ms("maxTriggerDelay", 900_000),
        min_partitions=given.positive("minPartitions") or 0,
        max_records_per_partition=given.positive("maxRecordsPerPartition") or 0,
        group_id=given.text("kafka.group.id"),
        isolation=_isolation(given),
        client_rack=given.text("kafka.client.rack") or "",
    )


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a write. Raises KafkaError(INVALID_REQUEST) that names the option and the way out."""
    given = _Given(options)
    given.refuse_unsupported()
    given.warn_of_ignored("write")
    acks = given.text("kafka.acks") or "all"
    if acks not in ("all", "-1"):
        raise fault("kafka.acks", "the sink is idempotent and at least once, which needs acks=all")
    compression = given.text("kafka.compression.type") or "none"
    if compression not in ("none", "gzip", "snappy", "lz4", "zstd"):
        raise fault("kafka.compression.type", "must be none, gzip, snappy, lz4 or zstd")
    return SinkOptions(
        bootstrap_servers=given.required("kafka.bootstrap.servers", 'for example "127.0.0.1:9092"'),
        topic=given.text("topic"),
        include_headers=given.boolean("includeHeaders", False),
        compression=compression,
        max_request_size=given.positive("kafka.max.request.size") or 1_048_576,
        transactions=_transactions(given),
    )


def _transactions(given: "_Given") -> SinkTransactions | None:
    sink_id, takes_over = given.text("sinkId"), given.boolean("sinkTakesOver", False)
    if not given.boolean("exactlyOnce", False):
        for name in ("sinkId", "sinkTakesOver", "kafka.transaction.timeout.ms"):
            if given.text(name) is not None:
                raise fault(name, "has a meaning with exactlyOnce=true alone")
        return None
    if sink_id is not None:
        try:
            check_sink(sink_id)
        except KafkaError as wrong:
            raise fault("sinkId", wrong.detail) from None
    return SinkTransactions(
        sink_id=sink_id,
        takes_over=takes_over,
        timeout_ms=given.positive("kafka.transaction.timeout.ms") or 900_000,
        checkpoint=given.text("checkpointLocation"),
    )


def fault(option: str, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"option {option}: {why}")


class _Given:
    """The given options; names in any case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    def refuse_unsupported(self) -> None:
        for name, way_out in REFUSED.items():
            if name in self._options:
                raise fault(name, f"not supported: {way_out}")
        for name, value in self._options.items():
            is_plain = name == "kafka.security.protocol" and value.upper() == "PLAINTEXT"
            if name.startswith(_OF_SECURITY) and not is_plain:
                way_out = "connections are neither encrypted nor authenticated; name a listener that is PLAINTEXT"
                raise fault(name, f"not supported: {way_out}")

    def warn_of_ignored(self, kind: Kind) -> None:
        known = {name.lower(): name for name in _NAMES[kind]}
        for name in sorted(self._options.keys() - known.keys() - _SPARKS_OWN):
            if name in _OF_ANOTHER_KIND:
                _log.warning("%s", _OF_ANOTHER_KIND[name])
                continue
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            hint = f"; did you mean {known[near[0]]}?" if near else ""
            _log.warning("option %s has no meaning here and is ignored%s", name, hint)

    def text(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def required(self, name: str, example: str) -> str:
        value = self.text(name)
        if not value:
            raise fault(name, f"is required, {example}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise fault(name, f"must be true or false, not {value!r}")
        return value.lower() == "true"

    def positive(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.isascii() or not value.isdigit() or int(value) == 0:
            raise fault(name, f"must be a whole number above 0, not {value!r}")
        return int(value)

    def duration_ms(self, name: str, default: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        duration = parse_duration_ms(value)
        if duration is None:
            raise fault(name, f"must be a duration such as 500ms, 30s, 15m or 1h, not {value!r}")
        return duration


_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)")


def parse_duration_ms(text: str) -> int | None:
    """`15m` -> 900000, or None if the text is no duration."""
    match = _DURATION.fullmatch(text.strip().lower())
    return int(match[1]) * _UNITS[match[2]] if match else None


def _subscription(given: _Given) -> Subscription:
    named = [name for name in ("assign", "subscribe", "subscribePattern") if given.text(name) is not None]
    if len(named) != 1:
        problem = "none is" if not named else f"{' and '.join(named)} are"
        raise fault("subscribe", f"exactly one of assign, subscribe and subscribePattern must be given; {problem}")
    if assign := given.text("assign"):
        return Subscription(assigned=parse_assignment(assign, what="assign"))
    if pattern := given.text("subscribePattern"):
        try:
            re.compile(pattern)
        except re.error as wrong:
            raise fault("subscribePattern", f"not a Python regular expression: {wrong}") from None
        return Subscription(pattern=pattern)
    topics = tuple(topic.strip() for topic in (given.text("subscribe") or "").split(",") if topic.strip())
    if not topics:
        raise fault(named[0], "names nothing to read")
    return Subscription(topics=topics)


_RELATIVE = re.compile(r"now-(.+)")


def _timestamp_ms(name: str, text: str) -> int:
    """Milliseconds since 1970, or `now-10m`, which Spark's connector does not know."""
    if text.isascii() and text.isdigit():
        return int(text)
    match = _RELATIVE.fullmatch(text.strip())
    ago = parse_duration_ms(match[1]) if match else None
    if ago is None:
        raise fault(name, f"must be milliseconds since 1970 or now-DURATION such as now-10m, not {text!r}")
    return int(time.time() * 1000) - ago


def _position(given: _Given, end: Literal["starting", "ending"], default: int) -> OffsetRangeLimit:
    """One end of the read, by Spark's precedence: one timestamp, then timestamps per partition, then offsets."""
    if text := given.text(f"{end}Timestamp"):
        return OffsetRangeLimit(timestamp=_timestamp_ms(f"{end}Timestamp", text))
    if text := given.text(f"{end}OffsetsByTimestamp"):
        timestamps = parse_offsets(text, what=f"{end}OffsetsByTimestamp")
        for topic_partition, timestamp in timestamps.items():
            if timestamp < 0:  # in the protocol these would be latest, earliest and others
                raise fault(f"{end}OffsetsByTimestamp", f"{topic_partition}: {timestamp} is not ms since 1970")
        return OffsetRangeLimit(timestamps=timestamps)
    text = given.text(f"{end}Offsets")
    if text is None:
        return OffsetRangeLimit(everywhere=default)
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.strip().lower() in words:
        return OffsetRangeLimit(everywhere=words[text.strip().lower()])
    offsets = parse_offsets(text, what=f"{end}Offsets")
    illegal = EARLIEST if end == "ending" else None
    for topic_partition, offset in offsets.items():
        if offset < EARLIEST or offset == illegal:
            raise fault(f"{end}Offsets", f"{topic_partition}: {offset} is not an offset")
    return OffsetRangeLimit(offsets=offsets)


def _check_same_partitions(starting: OffsetRangeLimit, ending: OffsetRangeLimit) -> None:
    if starting.offsets is not None and ending.offsets is not None and starting.offsets.keys() != ending.offsets.keys():
        odd = sorted(str(tp) for tp in starting.offsets.keys() ^ ending.offsets.keys())
        raise fault(
            "endingOffsets", f"must name the same partitions as startingOffsets; they differ in {', '.join(odd)}"
        )


def _isolation(given: _Given) -> Isolation:
    isolation = given.text("kafka.isolation.level") or "read_uncommitted"
    for known in get_args(Isolation):
        if isolation.lower() == known:
            return known  # type: ignore[no-any-return]  # get_args loses the literal type
    raise fault("kafka.isolation.level", f"must be read_uncommitted or read_committed, not {isolation!r}")


def _strategy(given: _Given) -> TimestampStrategy:
    strategy = given.text("startingOffsetsByTimestampStrategy") or "error"
    for known in get_args(TimestampStrategy):
        if strategy.lower() == known:
            return known  # type: ignore[no-any-return]  # get_args loses the literal type
    raise fault("startingOffsetsByTimestampStrategy", f"must be error or latest, not {strategy!r}")
