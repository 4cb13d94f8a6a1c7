"""The checkpoint of a Spark query, as text: the offsets of a batch, and where they lie in the logs. Pure.

| Name | Content |
|---|---|
| `metadata` | the id of the query, JSON |
| `offsets/N` | written before batch N runs: `v1`, a line of JSON of Spark's, and for each source its end, JSON or `-` |
| `commits/N` | written when batch N is done |
| `.NAME.crc` | Hadoop's checksum of the file NAME beside it; a file without checksum is not checked |

A query begins where the last committed batch ends. A batch that is planned and not committed runs again first, from
there to the end that was planned. Sources of topics, Tailrace's and Spark's Kafka connector, write `Positions`; lines
of other sources are kept unchanged.
"""

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark.offsets import Positions

VERSION = "v1"
_NO_OFFSET = "-"
_COMPACT = (",", ":")
_LONGEST_NUMBER = 19
"""Digits of a batch id, which is a long in Spark."""


def checksum_name(name: str) -> str:
    """The name of Hadoop's checksum of the file with this name."""
    return f".{name}.crc"


def parse_query_id(content: bytes, *, path: str) -> str:
    """The id of the query, from `metadata`. Raises KafkaError(INVALID_REQUEST) that names the path."""
    metadata = _json(_text(content, path), path)
    query_id = metadata.get("id") if isinstance(metadata, dict) else None
    if not isinstance(query_id, str) or not query_id:
        raise _fault(path, 'is not the metadata of a Spark query, {"id": "..."}')
    return query_id


class Batches(NamedTuple):
    """The batches of a checkpoint."""

    committed: int | None
    """The last committed batch; None before the first commit."""
    planned: tuple[int, ...]
    """Batches planned and not committed, ascending. More than one batch only with asynchronous progress."""

    @classmethod
    def of(cls, offset_names: Iterable[str], commit_names: Iterable[str]) -> "Batches":
        """The batches with these names in `offsets` and `commits`; names that are no batch ids are left out."""
        committed = max(_numbers(commit_names), default=None)
        behind = -1 if committed is None else committed
        return cls(committed, tuple(number for number in sorted(_numbers(offset_names)) if number > behind))


def _numbers(names: Iterable[str]) -> list[int]:
    digits = (name for name in names if name.isascii() and name.isdigit() and len(name) <= _LONGEST_NUMBER)
    return [int(name) for name in digits if str(int(name)) == name]


class SourceEnd(NamedTuple):
    """The end of a batch in one source of its query."""

    text: str
    positions: Positions | None
    """None for a source that does not read topics, or without an offset so far."""

    def at(self, positions: Positions) -> "SourceEnd":
        """The end at these positions, written in the present form, such as the connector's compact form."""
        if positions == self.positions:
            return self
        separators = None if " " in self.text else _COMPACT
        return SourceEnd(json.dumps(positions.to_json_dict(), separators=separators), positions)


class BatchEnd(NamedTuple):
    """The content of `offsets/N`."""

    metadata: str
    """Spark's own line: watermark, time and settings."""
    sources: tuple[SourceEnd, ...]

    def format(self) -> bytes:
        """The inverse of `parse`."""
        return "\n".join((VERSION, self.metadata, *(source.text for source in self.sources))).encode()

    @classmethod
    def parse(cls, content: bytes, *, path: str) -> "BatchEnd":
        """Raises KafkaError(INVALID_REQUEST) that names the path and the wrong line, also for other versions."""
        version, _, rest = _text(content, path).partition("\n")
        if version != VERSION:
            known = f"is of version {version[:20]!r}; only {VERSION} is known here, without names of sources"
            raise _fault(path, known if version else "is empty or cut short")
        metadata, *lines = rest.split("\n")
        if not isinstance(_json(metadata, f"{path}, line 2"), dict):
            raise _fault(path, "line 2 is no JSON object")
        if not lines:
            raise _fault(path, "is cut short: it has the offsets of no source")
        sources = (_parse_source(line, f"{path}, line {number}") for number, line in enumerate(lines, 3))
        return cls(metadata, tuple(sources))

    @property
    def topics(self) -> list[str]:
        """The topics that are read, sorted."""
        return sorted(
            {tp.topic for source in self.sources if source.positions is not None for tp in source.positions.offsets}
        )


def _parse_source(line: str, place: str) -> SourceEnd:
    if line == _NO_OFFSET:
        return SourceEnd(line, None)
    value = _json(line, place)
    if not _has_form_of_positions(value):
        return SourceEnd(line, None)
    positions = Positions.from_json_dict(value, what=place)
    for tp, offset in positions.offsets.items():
        if offset < 0:
            raise _fault(place, f"{tp.topic!r}: {str(tp.partition)!r}: {offset} is not a partition and an offset")
    if positions.to_json_dict() != value:
        raise _fault(place, "names a partition by another number, such as 00, or a topic without partitions")
    return SourceEnd(line, positions)


def _has_form_of_positions(value: Any) -> bool:
    """Whether the value maps names to maps from partitions to whole numbers; the values of other sources (files, Delta)
    do not."""
    return isinstance(value, dict) and all(
        isinstance(partitions, dict)
        and all(name.isascii() and name.isdigit() and type(offset) is int for name, offset in partitions.items())
        for partitions in value.values()
    )


def _text(content: bytes, path: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _fault(path, "is not text") from None


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _fault(place, "is not JSON: it is damaged, or cut short") from None


def _fault(place: str, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"{place}: {why}")


def renamed(positions: Positions, names: Mapping[str, str]) -> Positions:
    """The offsets under the new names of their topics, without ids, since the new topics are other topics.

    Raises KafkaError(INVALID_REQUEST) for two topics of one name.
    """
    topics = {tp.topic for tp in positions.offsets}
    afterwards = [names.get(topic, topic) for topic in sorted(topics)]
    if twice := sorted({name for name in afterwards if afterwards.count(name) > 1}):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"two topics of one source cannot become a single topic: {', '.join(twice)}"
        )
    offsets = {tp._replace(topic=names.get(tp.topic, tp.topic)): offset for tp, offset in positions.offsets.items()}
    kept = {topic: topic_id for topic, topic_id in positions.topic_ids.items() if topic not in names}
    return Positions(offsets, kept)


class ResumeVerdict(StrEnum):
    """The way a query goes on in a partition, from its offset."""

    RESUMES = "resumes"
    LOSES = "would lose"
    AHEAD = "ahead of the log"
    """The offset lies behind the end: the topic was made anew, or its log was cut."""
    MADE_ANEW = "made anew"
    """The topic has another id: it was deleted and created again."""
    GONE = "gone"


class PartitionLog(NamedTuple):
    """The offsets of a log: records with start <= offset < end."""

    start: int
    end: int


class Standing(NamedTuple):
    """The offset of a query in a partition, and the log's present offsets."""

    offset: int
    log: PartitionLog | None
    """The present log; None if there is no such partition."""
    is_made_anew: bool = False

    @property
    def verdict(self) -> ResumeVerdict:
        if self.log is None:
            return ResumeVerdict.GONE
        if self.is_made_anew:
            return ResumeVerdict.MADE_ANEW
        if self.offset > self.log.end:
            return ResumeVerdict.AHEAD
        return ResumeVerdict.LOSES if self.offset < self.log.start else ResumeVerdict.RESUMES

    @property
    def lost(self) -> int | None:
        """The number of offsets below the log start that the query has not read; None if unknown."""
        match self.verdict:
            case ResumeVerdict.RESUMES | ResumeVerdict.LOSES:
                assert self.log is not None
                return max(self.log.start - self.offset, 0)
            case _:
                return None

    @property
    def lag(self) -> int | None:
        """The number of offsets from the query's offset, or from the log start if that is higher, to the end; None if
        unknown."""
        if self.lost is None or self.log is None:
            return None
        return self.log.end - max(self.offset, self.log.start)

    def __str__(self) -> str:
        return f"{self.verdict} {self.lost}" if self.verdict is ResumeVerdict.LOSES else str(self.verdict)


def standings(
    positions: Positions, now: Positions, logs: Mapping[TopicPartition, PartitionLog]
) -> dict[TopicPartition, Standing]:
    """The positions, every position beside its log."""
    anew = positions.made_anew(now.topic_ids)
    return {tp: Standing(offset, logs.get(tp), tp.topic in anew) for tp, offset in sorted(positions.offsets.items())}
