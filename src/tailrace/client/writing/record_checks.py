"""Checks of a record before a producer sends the record: types, names, the size."""

import time
from collections.abc import Iterable, Mapping
from functools import lru_cache

from tailrace.client.writing.outgoing import HeaderPairs, Headers, record_cost
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import topic_name_fault
from tailrace.protocol.records.batch import HEADER_SIZE


class CheckedRecord:
    """Key, value and headers of a record in a producer's memory, and the bytes of buffer.memory that the record
    counts for."""

    __slots__ = ("cost", "headers", "key", "value")

    def __init__(self, key: bytes | None, value: bytes | None, headers: HeaderPairs, cost: int) -> None:
        self.key = key
        self.value = value
        self.headers = headers
        self.cost = cost


def check_record(
    topic: str,
    partition: int | None,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None,
    *,
    max_request_size: int,
) -> CheckedRecord:
    """The record, checked as far as a client can. A bytearray or memoryview is copied.

    Headers come as a mapping, or as pairs from any iterable; None stands for no headers.

    Raises TypeError with the right form, or KafkaError: INVALID_TOPIC_EXCEPTION, MESSAGE_TOO_LARGE, INVALID_RECORD for
    a header whose name cannot be encoded as UTF-8.
    """
    check_topic(topic)
    if partition is not None and type(partition) is not int:
        check_partition(partition)
    if key is not None and type(key) is not bytes:
        key = _as_bytes("key", key)
    if value is not None and type(value) is not bytes:
        value = _as_bytes("value", value)
    pairs = () if headers == () else _checked_headers(headers)
    cost = record_cost(key, value, pairs)
    if cost + HEADER_SIZE > max_request_size:
        detail = (
            f"a record of {cost} bytes for topic {topic!r} is larger than max.request.size {max_request_size}; make it "
            "smaller, or raise the producer's max_request_size and the topic's max.message.bytes"
        )
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, detail)
    return CheckedRecord(key, value, pairs, cost)


_name_fault = lru_cache(maxsize=1_000)(topic_name_fault)
"""Cached: a producer checks the same few topics again for every record."""


def check_topic(topic: object) -> None:
    """Raise TypeError or KafkaError(INVALID_TOPIC_EXCEPTION) unless the value may be the name of a topic."""
    if not isinstance(topic, str):
        way_out = "; decode it: topic.decode()" if isinstance(topic, bytes) else ""
        raise TypeError(f"topic must be str, not {_type(topic)}{way_out}")
    fault = _name_fault(topic)
    if fault is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {topic[:250]!r}: {fault}")


def check_partition(partition: object) -> None:
    """Raise TypeError unless the value is a whole number, numpy's included."""
    if not hasattr(partition, "__index__"):
        raise TypeError(f"partition must be int or None, not {_type(partition)}")


def _as_bytes(what: str, given: object, name: str | None = None) -> bytes:
    """The bytes. Raises TypeError; the text has an example with the variable `name`."""
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    name = name or what
    if isinstance(given, str):
        raise TypeError(f"{what} must be bytes or None, not str; encode it: {name}.encode()")
    raise TypeError(f"{what} must be bytes or None, not {_type(given)}; encode it, e.g. json.dumps({name}).encode()")


def _checked_headers(headers: object) -> tuple[tuple[str, bytes | None], ...]:
    if headers is None:
        return ()
    if isinstance(headers, Mapping):
        headers = headers.items()
    if not isinstance(headers, Iterable):
        raise TypeError(_no_pairs(headers))
    return tuple(_checked_header(header) for header in headers)


def _checked_header(header: object) -> tuple[str, bytes | None]:
    if not isinstance(header, (tuple, list)) or len(header) != 2:
        raise TypeError(_no_pairs(header))
    name, content = header
    if not isinstance(name, str):
        way_out = "; decode it: name.decode()" if isinstance(name, bytes) else ""
        raise TypeError(f"the name of a header must be str, not {_type(name)}{way_out}")
    if content is not None and type(content) is not bytes:
        content = _as_bytes(f"the value of header {name!r}", content, "value")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"a header's name cannot be written as UTF-8: {name!r}") from None
    return name, content


def _no_pairs(given: object) -> str:
    return f"headers must be pairs (name, bytes), not {_type(given)}; such as [('trace', b'1')]"


def _type(given: object) -> str:
    return type(given).__name__


def stamp_of(timestamp: int | None, timestamp_ms: int | None) -> int:
    """The timestamp in ms since 1970, by the one or the other keyword of `send`; now without both. Raises
    KafkaError(INVALID_TIMESTAMP)."""
    if timestamp_ms is not None:
        if timestamp not in (None, timestamp_ms):
            detail = "timestamp and timestamp_ms are names of the same argument, with two values; give one"
            raise KafkaError(ErrorCode.INVALID_TIMESTAMP, detail)
        timestamp = timestamp_ms
    if timestamp is None:
        return time.time_ns() // 1_000_000
    if not isinstance(timestamp, int) or not 0 <= timestamp < 2**63:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, f"timestamp {timestamp!r}; say milliseconds since 1970")
    return timestamp
