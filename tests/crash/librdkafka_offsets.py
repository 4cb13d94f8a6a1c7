"""Offsets of acknowledged records by librdkafka's delivery reports: now and then an offset is not known."""

from collections.abc import Mapping

import confluent_kafka

from testkit.verdicts.replica_history import UNKNOWN_OFFSET


def offset_of(message: confluent_kafka.Message) -> int:
    """The offset of a record that was delivered, or UNKNOWN_OFFSET."""
    offset = message.offset()
    return UNKNOWN_OFFSET if offset is None else int(offset)


def is_there(values: Mapping[int, str], offset: int, value: str) -> bool:
    """Whether a partition, whose values by offset these are, has the value: at its offset if that is known."""
    return value in values.values() if offset == UNKNOWN_OFFSET else values.get(offset) == value
