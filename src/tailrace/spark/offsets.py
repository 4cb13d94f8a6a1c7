"""Offsets in many partitions: Spark's JSON form `{"topic": {"0": 123}}`, and the ranges that tasks read. Pure.

1. Spark compares offsets as JSON text, key order included: a source that writes the same offsets in another order runs
   an empty micro-batch at every trigger. So `to_json_dict` sorts topics, and partitions by number.
2. A Python task costs Spark about 20 ms, so small partitions share a task; a large range is cut, so that several tasks
   read one partition. Spark's own connector can only do the second.
"""

import json
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import TopicId, format_topic_id, parse_topic_id
from tailrace.model.key_ranges import SLOTS, KeyRange, of_slots
from tailrace.model.partitions import TopicPartition

Offsets = Mapping[TopicPartition, int]

LATEST = -1
EARLIEST = -2


_ID = "#"
"""The character between a topic's name, in which the character is illegal, and the topic's id."""
_LAST_PARTITION, _LAST_OFFSET = 2**31 - 1, 2**63 - 1
_LONGEST_PARTITION = len(str(_LAST_PARTITION))

CHECKPOINT = "the checkpoint's offsets"
"""The offsets that Spark gives a query from its checkpoint, as messages name these offsets."""
_WAYS_OUT = {
    CHECKPOINT: "; the checkpoint is damaged or of another source: `tailrace spark checkpoint show DIR` shows it",
}


class Positions(NamedTuple):
    """Offsets, and the known ids of their topics: a checkpoint of Spark's connector has none.

    In JSON an id is one more name without partitions, `{"orders": {"0": 5}, "orders#Fq2...": {}}`: the connector reads
    such a name as a topic without an offset, so that a checkpoint can go there and back.
    """

    offsets: Offsets
    topic_ids: Mapping[str, TopicId]

    def to_json_dict(self) -> dict[str, dict[str, int]]:
        """The positions in the structure of Spark's Kafka connector, in a fixed order."""
        result: dict[str, dict[str, int]] = {}
        for topic_partition in sorted(self.offsets):
            result.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = self.offsets[topic_partition]
        for topic in sorted(self.topic_ids.keys() & result.keys()):
            result[f"{topic}{_ID}{format_topic_id(self.topic_ids[topic])}"] = {}
        return result

    @classmethod
    def from_json_dict(cls, positions: Mapping[str, Mapping[str, Any]], *, what: str = CHECKPOINT) -> "Positions":
        """The inverse of `to_json_dict`. Raises KafkaError(INVALID_REQUEST) that names `what` and the wrong place."""
        topic_ids: dict[str, TopicId] = {}
        for name in positions:
            topic, mark, text = name.partition(_ID)
            if mark:
                try:
                    topic_ids[topic] = parse_topic_id(text)
                except ValueError as fault:
                    raise _fault(what, f"{name!r}: {fault}") from None
        return cls(from_json_dict(positions, what=what), topic_ids)

    def made_anew(self, topic_ids: Mapping[str, TopicId]) -> list[str]:
        """The topics with another id in `topic_ids`: they were deleted and created again."""
        return sorted(name for name, known in self.topic_ids.items() if topic_ids.get(name, known) != known)

    def moved_to(self, now: "Positions") -> "Positions":
        """The positions in the present topics: the first offset, 0, in topics that were made anew."""
        anew = self.made_anew(now.topic_ids)
        if not anew:
            return self
        kept = {tp: offset for tp, offset in self.offsets.items() if tp.topic not in anew}
        begun = dict.fromkeys((tp for tp in now.offsets if tp.topic in anew), 0)
        return Positions(kept | begun, {**self.topic_ids, **{name: now.topic_ids[name] for name in anew}})


def to_json_dict(offsets: Offsets) -> dict[str, dict[str, int]]:
    """The offsets in the structure of Spark's Kafka connector, in a fixed order."""
    return Positions(offsets, {}).to_json_dict()


def from_json_dict(positions: Mapping[str, Mapping[str, Any]], *, what: str = "offsets") -> dict[TopicPartition, int]:
    """The offsets alone. Raises KafkaError(INVALID_REQUEST) that names `what` and the wrong place."""
    offsets: dict[TopicPartition, int] = {}
    for topic, partitions in positions.items():
        if not isinstance(partitions, Mapping):
            raise _fault(what, f"{topic!r} must map partitions to numbers")
        for partition, offset in partitions.items():
            name = str(partition)
            is_partition = name.isascii() and name.isdigit() and len(name) <= _LONGEST_PARTITION
            if not is_partition or int(name) > _LAST_PARTITION or not _is_int64(offset):
                raise _fault(
                    what, f"{topic!r}: {partition!r}: {reprlib.repr(offset)} is not a partition and a whole number"
                )
            topic_partition = TopicPartition(topic, int(name))
            if topic_partition in offsets:
                raise _fault(what, f"names {topic_partition} twice")
            offsets[topic_partition] = offset
    return offsets


def _is_int64(value: object) -> bool:
    return type(value) is int and -_LAST_OFFSET <= value <= _LAST_OFFSET


def parse_offsets(text: str, *, what: str) -> dict[TopicPartition, int]:
    """Offsets from an option's JSON text."""
    return from_json_dict(_object(text, what), what=f"option {what}")


def parse_assignment(text: str, *, what: str) -> frozenset[TopicPartition]:
    """Partitions from `{"topic": [0, 1]}`, the value of the option `assign`."""
    chosen: set[TopicPartition] = set()
    for topic, partitions in _object(text, what).items():
        if not isinstance(partitions, list) or not all(type(partition) is int for partition in partitions):
            raise _fault(f"option {what}", f"{topic!r} must map to a list of partition numbers")
        chosen.update(TopicPartition(topic, partition) for partition in partitions)
    return frozenset(chosen)


def _object(text: str, what: str) -> dict[str, Any]:
    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):  # `json` would take the last value of each name
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise _fault(f"option {what}", f"names {twice!r} twice")
        return value

    try:
        value = json.loads(text, object_pairs_hook=without_repeats)
    except ValueError as fault:
        raise _fault(f"option {what}", f"not JSON: {fault}") from None
    except RecursionError:
        raise _fault(f"option {what}", "not JSON: nested too deeply") from None
    if not isinstance(value, dict):
        raise _fault(f"option {what}", 'must be a JSON object such as {"topic": {"0": 23, "1": -2}}')
    return value


def _fault(what: str, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"{what}: {why}{_WAYS_OUT.get(what, '')}")


class OffsetRange(NamedTuple):
    """Records of one partition with start <= offset < end."""

    topic_partition: TopicPartition
    start: int
    end: int
    topic_id: TopicId | None = None
    """The id of the topic that has the records; None: any topic with this name."""
    key_ranges: tuple[KeyRange, ...] = ()
    """The key hashes of the records (KIP-X); empty for all records."""

    @property
    def size(self) -> int:
        return self.end - self.start


def ranges_between(start: Offsets, end: Offsets, topic_ids: Mapping[str, TopicId]) -> list[OffsetRange]:
    """The ranges from `start` to `end`, without empty ranges, in the order of the partitions.

    A partition that is missing in `start` is new: it begins at its offset in `end`, without records, so that a replay
    after retention plans the same ranges again.
    """
    return [
        OffsetRange(tp, start[tp], end[tp], topic_ids.get(tp.topic))
        for tp in sorted(end)
        if tp in start and start[tp] < end[tp]
    ]


def limit_rows(start: Offsets, end: Offsets, max_rows: int) -> dict[TopicPartition, int]:
    """`end`, lowered so that at most `max_rows` (>= 1) offsets lie between, in shares proportional to the backlog.

    Each partition with a backlog gets at least one row, if there are enough: a small backlog must not starve.
    """
    backlog = {tp: end[tp] - start.get(tp, end[tp]) for tp in sorted(end)}
    waiting = {tp: size for tp, size in backlog.items() if size > 0}
    if sum(waiting.values()) <= max_rows:
        return dict(end)
    shares = _proportional_shares(waiting, max_rows)
    return {tp: start[tp] + shares.get(tp, 0) if tp in waiting else end[tp] for tp in end}


def bytes_between(start: Offsets, end: Offsets, weights: Mapping[TopicPartition, float]) -> int:
    """The bytes from `start` to `end`, given the bytes of an offset in each partition between."""
    return int(sum((end[tp] - start[tp]) * weight for tp, weight in weights.items()))


def limit_bytes(
    start: Offsets, end: Offsets, weights: Mapping[TopicPartition, float], max_bytes: int
) -> dict[TopicPartition, int]:
    """`end`, lowered so that about `max_bytes` lie between, in shares proportional to the backlog.

    Each partition with a backlog gets at least one offset: a small backlog must not starve, and a record larger than
    the limit must come.
    """
    size = bytes_between(start, end, weights)
    if size <= max_bytes:
        return dict(end)
    shares = {tp: max(1, (end[tp] - start[tp]) * max_bytes // size) for tp in weights}
    return {tp: start[tp] + shares[tp] if tp in shares else end[tp] for tp in end}


def _proportional_shares(backlog: Mapping[TopicPartition, int], total: int) -> dict[TopicPartition, int]:
    """`total` in whole parts: first 1 for each partition, the rest by size, the largest remainders rounded up."""
    by_size = sorted(backlog, key=lambda tp: (-backlog[tp], tp))
    if total <= len(by_size):
        return dict.fromkeys(by_size[:total], 1)
    spare = total - len(by_size)
    weight = sum(backlog.values()) - len(by_size)
    shares = {tp: 1 + spare * (backlog[tp] - 1) // weight for tp in by_size}
    by_remainder = sorted(by_size, key=lambda tp: (-(spare * (backlog[tp] - 1) % weight), tp))
    for tp in by_remainder[: total - sum(shares.values())]:
        shares[tp] += 1
    return shares


def cut(ranges: Iterable[OffsetRange], *, min_partitions: int = 0, max_records: int = 0) -> list[OffsetRange]:
    """The ranges, cut into about `min_partitions` pieces of at most `max_records`; 0 stands for no limit.

    As in Spark's connector a range gets pieces in proportion to its size, and the limit with more pieces wins.
    """
    whole = [piece for piece in ranges if piece.size > 0]
    total = sum(piece.size for piece in whole)
    pieces: list[OffsetRange] = []
    for piece in whole:
        by_count = round(piece.size * min_partitions / total) if min_partitions > len(whole) else 1
        by_records = -(-piece.size // max_records) if max_records else 1
        pieces.extend(_cut_one(piece, max(1, by_count, by_records)))
    return pieces


def _cut_one(piece: OffsetRange, count: int) -> list[OffsetRange]:
    count = min(count, piece.size)
    edges = [piece.start + piece.size * i // count for i in range(count + 1)]
    return [piece._replace(start=a, end=b) for a, b in pairwise(edges)]


def by_key(ranges: Iterable[OffsetRange], count: int) -> list[OffsetRange]:
    """The ranges, every range `count` times, 1 to 256, with another part of the key hashes each, of equal size."""
    edges = [SLOTS * part // count for part in range(count + 1)]
    parts = [of_slots(first, behind - 1) for first, behind in pairwise(edges)]
    return [piece._replace(key_ranges=(part,)) for piece in ranges for part in parts]


def pack(ranges: Sequence[OffsetRange], *, tasks: int) -> list[tuple[OffsetRange, ...]]:
    """The ranges as the work of at most `tasks` tasks of similar size, largest first into the emptiest."""
    bins: list[list[OffsetRange]] = [[] for _ in range(min(tasks, len(ranges)))]
    loads = [(0, 0)] * len(bins)  # by records, then by ranges: some ranges are empty
    for piece in sorted(ranges, key=lambda piece: (-piece.size, piece)):
        emptiest = loads.index(min(loads))
        bins[emptiest].append(piece)
        records, count = loads[emptiest]
        loads[emptiest] = (records + piece.size, count + 1)
    return [tuple(sorted(work)) for work in bins]
