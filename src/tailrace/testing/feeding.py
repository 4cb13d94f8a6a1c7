"""Records for a topic, written down as a test likes to: texts, bytes, and dicts that become JSON."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import TypeAlias, TypeVar

from tailrace.client.blocking.admin import Admin
from tailrace.client.blocking.producer import Producer
from tailrace.client.writing.outgoing import RecordMetadata
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing.servers import Connection, Servers, connection

T = TypeVar("T")
Content: TypeAlias = str | bytes | Mapping[str, object] | list[object] | None
"""A text (UTF-8), bytes unchanged, a dict or a list as JSON, None for null."""

__tracebackhide__ = True  # pytest shows the line of the test

_ENCODABLE = "say a str, bytes, a dict or list (which become JSON), or None"


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A record with more than a value."""

    value: Content
    _: KW_ONLY
    key: Content = None
    headers: Mapping[str, Content] | Sequence[tuple[str, Content]] = ()
    timestamp: int | datetime | None = None
    """Milliseconds since 1970, or a datetime with its time zone; None for now."""
    partition: int | None = None
    """The partition of the row; None: the key decides, and rows without a key go to the partitions in turn."""


@dataclass(frozen=True, slots=True)
class EncodedRecord:
    """A record in the producer's form."""

    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int | None
    partition: int | None


def feed(
    servers: Servers,
    topic: str,
    rows: Iterable[Content | tuple[Content, Content] | InputRecord],
    *,
    partitions: int | None = None,
) -> list[RecordMetadata]:
    """Write records, and return the place of each (partition, offset, ...) when the cluster has every record.

    A row is a value, a pair of key and value, or an `InputRecord`. Rows without key and partition go to the partitions
    in turn, from 0 on. A missing topic is created, with `partitions` (1 without). Raises TypeError or ValueError, with
    the number of the row from 0, before anything is written, if a row cannot be encoded or names a partition that the
    topic does not have; ValueError too if the topic has another number of partitions than `partitions`. Raises
    TypeError for a single row in the place of a list.
    """
    listed = list_of("rows", rows)
    encoded = [_encode_row(row, f"row {number} for topic {topic!r}") for number, row in enumerate(listed)]
    count = _partition_count(connection(servers), topic, partitions)
    for number, record in enumerate(encoded):
        if record.partition is not None and not 0 <= record.partition < count:
            raise ValueError(
                f"row {number} for topic {topic!r}: there is no partition {record.partition}, the topic has {count}"
            )
    keyless = 0
    with Producer(connection(servers)) as producer:
        sent = []
        for record in encoded:
            partition = record.partition
            if partition is None and record.key is None:
                partition, keyless = keyless % count, keyless + 1
            sent.append(
                producer.send(
                    topic,
                    record.value,
                    key=record.key,
                    partition=partition,
                    headers=record.headers,
                    timestamp=record.timestamp,
                )
            )
        producer.flush()
    return [each.result() for each in sent]


def list_of(name: str, records: Iterable[T]) -> list[T]:
    """The records of this argument. Raises TypeError, with the right form, for a single record in the place of a list:
    a text would become a record for each character, and a dict for each name."""
    if isinstance(records, str | bytes | bytearray | Mapping | InputRecord):
        raise TypeError(f"{name} is a list: say [{_shortened(records)}]")
    if not isinstance(records, Iterable):
        raise TypeError(f"{name} is a list, and {_shortened(records)} is of type {type(records).__name__}")
    return list(records)


def _partition_count(servers: Connection, topic: str, wanted: int | None) -> int:
    """The number of partitions of the topic; a missing topic is created."""
    with Admin(servers) as admin:
        found = admin.existing_topics([topic])
        if not found:
            try:
                admin.create_topics({topic: wanted or 1})
            except KafkaError as fault:
                if fault.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            found = admin.describe_topics([topic])
    count = len(found[0].partitions)
    if wanted is not None and count != wanted:
        raise ValueError(
            f"topic {topic!r} has {count} partitions, not {wanted}: leave `partitions` out, or name another"
        )
    return count


def _encode_row(row: object, place: str) -> EncodedRecord:
    match row:
        case InputRecord():
            record = row
        case tuple() if len(row) == 2:
            record = InputRecord(row[1], key=row[0])
        case tuple():
            raise TypeError(
                f"{place}: a tuple is a pair of key and value, and this tuple has {len(row)}: say InputRecord(...)"
            )
        case None:
            raise TypeError(f"{place}: None is no row; say InputRecord(None, key=...) for a null value")
        case _:
            record = InputRecord(row)  # type: ignore[arg-type]  # any other type is refused below, by name
    return encode_record(record, place)


def encode_record(record: InputRecord, place: str) -> EncodedRecord:
    """The record as bytes. Raises TypeError or ValueError that begins with `place`."""
    if record.partition is not None and (isinstance(record.partition, bool) or not isinstance(record.partition, int)):
        raise TypeError(f"{place}: partition: {record.partition!r} is no int")
    return EncodedRecord(
        value=_encode(record.value, f"{place}: value"),
        key=_encode(record.key, f"{place}: key"),
        headers=_encode_headers(record.headers, f"{place}: headers"),
        timestamp=_encode_time(record.timestamp, f"{place}: timestamp"),
        partition=record.partition,
    )


def _encode(content: object, place: str) -> bytes | None:
    """The bytes of a content. Raises TypeError or ValueError that begins with `place`."""
    match content:
        case None | bytes():
            return content
        case bytearray():
            return bytes(content)
        case str():
            text = content
        case Mapping() | list():
            try:
                text = json.dumps(content, ensure_ascii=False, allow_nan=False)
            except (TypeError, ValueError) as fault:
                raise type(fault)(f"{place}: no JSON of {_shortened(content)}: {fault}") from None
        case _:
            raise TypeError(f"{place}: {_shortened(content)} is of type {type(content).__name__}; {_ENCODABLE}")
    try:
        return text.encode()
    except UnicodeEncodeError as fault:
        raise ValueError(f"{place}: no UTF-8 of {_shortened(text)}: {fault.reason}; say bytes") from None


def _encode_headers(headers: object, place: str) -> tuple[tuple[str, bytes | None], ...]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise TypeError(f"{place}: {_shortened(headers)} is neither a dict nor a list of pairs")
    encoded = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"{place}: {_shortened(pair)} is no pair of a str and its value")
        encoded.append((pair[0], _encode(pair[1], f"{place}: {pair[0]!r}")))
    return tuple(encoded)


def _encode_time(time: object, place: str) -> int | None:
    match time:
        case None:
            return None
        case datetime() if time.tzinfo is None:
            raise ValueError(f"{place}: {time} has no time zone; say datetime(..., tzinfo=UTC)")
        case datetime():
            milliseconds = round(time.timestamp() * 1000)
        case bool():
            raise TypeError(f"{place}: {time!r} is no time; say milliseconds since 1970, or a datetime")
        case int():
            milliseconds = time
        case _:
            raise TypeError(f"{place}: {_shortened(time)} is no time; say milliseconds since 1970, or a datetime")
    if not 0 <= milliseconds < 2**63:
        raise ValueError(f"{place}: {time} is not from 1970 on")
    return milliseconds


def _shortened(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
