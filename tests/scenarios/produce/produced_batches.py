"""Batches of producers, right and damaged."""

from typing import Any

from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.record import Record, build_batch
from tailrace.testing.clock import ManualClock

NOW_MS = ManualClock().now_ms()


def batch(*timestamps: int, key: bytes | None = b"k", **options: Any) -> bytes:
    """A batch with a record per timestamp, or one of now."""
    records = [Record(number, at, key, b"value") for number, at in enumerate(timestamps or (NOW_MS,))]
    return bytes(build_batch(records, **options))


def damaged() -> bytes:
    built = bytearray(batch())
    built[-1] ^= 1
    return bytes(built)


AT_APPEND = TopicConfig(message_timestamp_type="LogAppendTime")
