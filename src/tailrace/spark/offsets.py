"""Positions in many partitions, as Spark keeps them: `{"topic": {"0": 123}}`.

Spark compares offsets as JSON text, key order included: a source that writes the same positions in another order runs
an empty micro-batch at every trigger. So `to_json_dict` always gives sorted topics and partitions in numeric order.
"""

import json
from collections.abc import Mapping
from typing import Any

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition

Offsets = Mapping[TopicPartition, int]

LATEST = -1
EARLIEST = -2


def to_json_dict(offsets: Offsets) -> dict[str, dict[str, int]]:
    """The positions in the structure of Spark's Kafka connector, in a fixed order."""
    result: dict[str, dict[str, int]] = {}
    for topic_partition in sorted(offsets):
        result.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = offsets[topic_partition]
    return result


def from_json_dict(positions: Mapping[str, Mapping[str, Any]], *, what: str = "offsets") -> dict[TopicPartition, int]:
    """The inverse. Raises KafkaError(INVALID_REQUEST) that names `what` and the place that is wrong."""
    offsets: dict[TopicPartition, int] = {}
    for topic, partitions in positions.items():
        if not isinstance(partitions, Mapping):
            raise _fault(what, f"{topic!r} must map partitions to numbers")
        for partition, offset in partitions.items():
            is_number = str(partition).isascii() and str(partition).isdigit()
            if not is_number or isinstance(offset, bool) or not isinstance(offset, int):
                raise _fault(what, f"{topic!r}: {partition!r}: {offset!r} is not a partition and a whole number")
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def parse_offsets(text: str, *, what: str) -> dict[TopicPartition, int]:
    """Positions from an option's JSON text."""
    return from_json_dict(_object(text, what), what=what)


def parse_assignment(text: str, *, what: str) -> frozenset[TopicPartition]:
    """Partitions from `{"topic": [0, 1]}`, the value of the option `assign`."""
    chosen: set[TopicPartition] = set()
    for topic, partitions in _object(text, what).items():
        if not isinstance(partitions, list) or not all(type(partition) is int for partition in partitions):
            raise _fault(what, f"{topic!r} must map to a list of partition numbers")
        chosen.update(TopicPartition(topic, partition) for partition in partitions)
    return frozenset(chosen)


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as fault:
        raise _fault(what, f"not JSON: {fault}") from None
    if not isinstance(value, dict):
        raise _fault(what, 'must be a JSON object such as {"topic": {"0": 23, "1": -2}}')
    return value


def _fault(what: str, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"option {what}: {why}")
