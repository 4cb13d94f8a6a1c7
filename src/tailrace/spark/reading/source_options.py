"""The options of a read, with the names, defaults and meaning of Spark's Kafka connector."""

import difflib
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from tailrace.model.key_ranges import SLOTS
from tailrace.model.partitions import INTERNAL_TOPICS, TopicPartition
from tailrace.spark.avro.formats import RecordFormats, parse_formats
from tailrace.spark.cluster_access import ClusterAccess, parse_access
from tailrace.spark.given_options import LAST_INT32, GivenOptions, Kind, fault, parse_timestamp_ms
from tailrace.spark.offsets import EARLIEST, LATEST, parse_assignment, parse_offsets

TimestampStrategy = Literal["error", "latest"]
Isolation = Literal["read_uncommitted", "read_committed"]
OnCorruptRecords = Literal["fail", "skip"]
_ON_CORRUPT: Mapping[str, OnCorruptRecords] = {"fail": "fail", "skip": "skip"}
_STRATEGIES: Mapping[str, TimestampStrategy] = {"error": "error", "latest": "latest"}
_ISOLATIONS: Mapping[str, Isolation] = {"read_uncommitted": "read_uncommitted", "read_committed": "read_committed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The partitions to read: exactly one field is set."""

    assigned: frozenset[TopicPartition] | None = None
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    """A regular expression that matches anywhere in a topic's name, as with Spark's connector."""

    @property
    def option(self) -> str:
        """The name of the option that sets the subscription."""
        if self.assigned is not None:
            return "assign"
        return "subscribe" if self.topics is not None else "subscribePattern"

    def has(self, partition: TopicPartition) -> bool:
        """Whether the partition is read, if it exists."""
        if self.assigned is not None:
            return partition in self.assigned
        if self.topics is not None:
            return partition.topic in self.topics
        return partition.topic not in INTERNAL_TOPICS and re.search(self.pattern or "", partition.topic) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRangeLimit:
    """An end of a read: a timestamp (ms), a timestamp or an offset per partition, or an end of the log.

    `offsets` and `timestamps` may use -1 (latest) and -2 (earliest) for an offset.
    """

    name: str
    """The option of this end, given or not."""
    everywhere: int = LATEST
    timestamp: int | None = None
    timestamps: Mapping[TopicPartition, int] | None = None
    offsets: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a read."""

    cluster: ClusterAccess
    subscription: Subscription
    starting: OffsetRangeLimit
    ending: OffsetRangeLimit
    by_timestamp_strategy: TimestampStrategy = "error"
    fail_on_data_loss: bool = True
    on_corrupt: OnCorruptRecords = "fail"
    """The handling of a batch that cannot be decoded: fail the query, or skip the batch and log a line."""
    include_headers: bool = False
    fetch_timeout_ms: int = 120_000
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    """The bytes of keys and values, about: measured by the first records of each partition."""
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    min_partitions: int = 0
    max_records_per_partition: int = 0
    key_ranges_per_partition: int = 1
    """The tasks that read a partition, each the records of some keys (KIP-X): 1 to 256."""
    group_id: str | None = None
    isolation: Isolation = "read_uncommitted"
    """read_committed reads up to the last stable offset, without records of aborted transactions."""
    client_rack: str = ""
    """The rack of the executors: the cluster may name a replica there to read from (KIP-392)."""
    client_rack_env: str | None = None
    """The environment variable that holds an executor's rack, if executors differ in their racks."""
    formats: RecordFormats = field(default_factory=RecordFormats)


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a read. Raises KafkaError(INVALID_REQUEST) that names the option and the way out."""
    given = GivenOptions(options)
    given.refuse_unsupported()
    kind: Kind = "streaming read" if streaming else "batch read"
    given.refuse_empty(kind)
    given.warn_of_ignored(kind)
    default_start = LATEST if streaming else EARLIEST
    starting = _position(given, "starting", default_start)
    ending = _position(given, "ending", LATEST)
    if not streaming and starting == OffsetRangeLimit(name="startingOffsets", everywhere=LATEST):
        raise fault("startingOffsets", "a batch read cannot start at latest: it would read nothing")
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if streaming and given.text(name) is not None:
            raise fault(name, "a streaming read has no end; use trigger(availableNow=True) to stop at today's")
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
        cluster=parse_access(given),
        subscription=_subscription(given),
        starting=starting,
        ending=ending,
        by_timestamp_strategy=_strategy(given),
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        on_corrupt=_on_corrupt(given),
        include_headers=given.boolean("includeHeaders", False),
        fetch_timeout_ms=given.positive("kafkaConsumer.pollTimeoutMs") or 120_000,
        max_offsets_per_trigger=most,
        max_bytes_per_trigger=given.size("maxBytesPerTrigger"),
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=given.duration_ms("maxTriggerDelay", 900_000),
        min_partitions=given.positive("minPartitions", at_most=LAST_INT32) or 0,
        max_records_per_partition=given.positive("maxRecordsPerPartition") or 0,
        key_ranges_per_partition=_key_ranges(given),
        group_id=given.text("kafka.group.id"),
        isolation=_isolation(given),
        client_rack=given.text("kafka.client.rack") or "",
        client_rack_env=_rack_variable(given),
        formats=_formats(given),
    )


def parse_source_formats(options: Mapping[str, str]) -> RecordFormats:
    """The formats alone, of a read of either kind: for its columns. Raises the errors of `parse_source_options`."""
    given = GivenOptions(options)
    given.refuse_empty("streaming read")
    return _formats(given)


def _formats(given: GivenOptions) -> RecordFormats:
    return parse_formats(given, only_topic=lambda: _only_topic(given))


def _only_topic(given: GivenOptions) -> str | None:
    if all(given.text(name) is None for name in ("subscribe", "assign")):
        return None
    subscription = _subscription(given)
    topics = {tp.topic for tp in subscription.assigned or ()} | set(subscription.topics or ())
    return next(iter(topics)) if len(topics) == 1 else None


def _subscription(given: GivenOptions) -> Subscription:
    named = [name for name in ("assign", "subscribe", "subscribePattern") if given.text(name) is not None]
    if len(named) != 1:
        problem = "none is" if not named else f"{' and '.join(named)} are"
        raise fault("subscribe", f"exactly one of assign, subscribe and subscribePattern must be given; {problem}")
    if assign := (given.text("assign") or "").strip():
        return Subscription(assigned=parse_assignment(assign, what="assign"))
    if pattern := (given.text("subscribePattern") or "").strip():
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as wrong:
            raise fault("subscribePattern", f"not a Python regular expression: {wrong}") from None
        return Subscription(pattern=pattern)
    topics = tuple(topic.strip() for topic in (given.text("subscribe") or "").split(",") if topic.strip())
    if not topics:
        raise fault(named[0], "names nothing to read")
    return Subscription(topics=topics)


def _timestamp_ms(name: str, text: str) -> int:
    timestamp = parse_timestamp_ms(text)
    if timestamp is None:
        raise fault(name, f"must be milliseconds since 1970 or now-DURATION such as now-10m, not {text!r}")
    return timestamp


_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_MEANT: Final = {
    "earliest": ("begin", "beginning", "start", "first", "smallest", "oldest", "0", "-2", "all"),
    "latest": ("end", "last", "largest", "newest", "now", "-1", "new"),
}
"""The words of other programs for the two ends of a log."""


def _no_position(text: str, end: Literal["starting", "ending"]) -> str:
    words = ("earliest", "latest") if end == "starting" else ("latest",)
    word = text.strip().lower()
    near = [known for known in words if word in _MEANT[known]] or difflib.get_close_matches(word, words, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    example = '{"topic": {"0": 23, "1": -2}}'
    return f"must be {' or '.join(words)}, or JSON such as {example}, not {reprlib.repr(text)}{hint}"


def _position(given: GivenOptions, end: Literal["starting", "ending"], default: int) -> OffsetRangeLimit:
    """An end of the read, by Spark's precedence: one timestamp, then timestamps per partition, then offsets."""
    if text := given.text(f"{end}Timestamp"):
        return OffsetRangeLimit(name=f"{end}Timestamp", timestamp=_timestamp_ms(f"{end}Timestamp", text))
    if text := given.text(f"{end}OffsetsByTimestamp"):
        timestamps = parse_offsets(text, what=f"{end}OffsetsByTimestamp")
        for topic_partition, timestamp in timestamps.items():
            if timestamp < 0:  # in the protocol these would be latest, earliest and others
                raise fault(f"{end}OffsetsByTimestamp", f"{topic_partition}: {timestamp} is not ms since 1970")
        return OffsetRangeLimit(name=f"{end}OffsetsByTimestamp", timestamps=timestamps)
    name = f"{end}Offsets"
    text = given.text(name)
    if text is None:
        return OffsetRangeLimit(name=name, everywhere=default)
    word = text.strip().lower()
    if word in _WORDS:
        return OffsetRangeLimit(name=name, everywhere=_WORDS[word])
    if not word.startswith(("{", "[")):
        raise fault(name, _no_position(text, end))
    offsets = parse_offsets(text, what=name)
    illegal = EARLIEST if end == "ending" else None
    for topic_partition, offset in offsets.items():
        if offset < EARLIEST or offset == illegal:
            raise fault(name, f"{topic_partition}: {offset} is not an offset")
    return OffsetRangeLimit(name=name, offsets=offsets)


def _check_same_partitions(starting: OffsetRangeLimit, ending: OffsetRangeLimit) -> None:
    if starting.offsets is not None and ending.offsets is not None and starting.offsets.keys() != ending.offsets.keys():
        odd = sorted(str(tp) for tp in starting.offsets.keys() ^ ending.offsets.keys())
        raise fault(
            "endingOffsets", f"must name the same partitions as startingOffsets; they differ in {', '.join(odd)}"
        )


def _key_ranges(given: GivenOptions) -> int:
    count = given.positive("keyRangesPerPartition") or 1
    if count > SLOTS:
        raise fault("keyRangesPerPartition", f"must be {SLOTS} at most, not {count}")
    for name in ("minPartitions", "maxRecordsPerPartition"):
        if count > 1 and given.text(name) is not None:
            raise fault(name, "cuts partitions by offsets, and a key of keyRangesPerPartition stays in one task")
    return count


def _rack_variable(given: GivenOptions) -> str | None:
    name = given.text("client.rack.env")
    if name is not None and given.text("kafka.client.rack") is not None:
        raise fault("client.rack.env", "kafka.client.rack is given too: one rack for all executors, or a rack for each")
    if name is not None and not name.isidentifier():
        raise fault("client.rack.env", f"must be the name of an environment variable, not {name!r}")
    return name


def _isolation(given: GivenOptions) -> Isolation:
    isolation = given.text("kafka.isolation.level") or "read_uncommitted"
    if isolation.lower() not in _ISOLATIONS:
        raise fault("kafka.isolation.level", f"must be read_uncommitted or read_committed, not {isolation!r}")
    return _ISOLATIONS[isolation.lower()]


def _on_corrupt(given: GivenOptions) -> OnCorruptRecords:
    action = given.text("onCorruptRecords") or "fail"
    if action.lower() not in _ON_CORRUPT:
        raise fault("onCorruptRecords", f"must be fail or skip, not {action!r}")
    return _ON_CORRUPT[action.lower()]


def _strategy(given: GivenOptions) -> TimestampStrategy:
    strategy = given.text("startingOffsetsByTimestampStrategy") or "error"
    if strategy.lower() not in _STRATEGIES:
        raise fault("startingOffsetsByTimestampStrategy", f"must be error or latest, not {strategy!r}")
    return _STRATEGIES[strategy.lower()]
