"""A record as a handler gets it. Pure."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.protocol.records.record import Header

Decode = Callable[[bytes], Any]


class SharedRecord(NamedTuple):
    """A record and where it stood. Timestamp in ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: Any
    """Decoded if there is a decoder and the record has a value; else bytes or None."""
    headers: tuple[Header, ...]
    fault: Exception | None = None
    """The exception of the decoder: the value is as it was stored."""
    attempt: int = 1
    """The number of times that the handler of this process has got the record, this time included."""


def shared_record(record: ConsumerRecord, attempt: int, decode: Decode | None) -> SharedRecord:
    """The record for a handler; it comes undecoded if it does not decode."""
    if decode is None or record.value is None:
        return SharedRecord(*record, attempt=attempt)
    try:
        value = decode(record.value)
    except Exception as fault:  # noqa: BLE001 - of the user's code; the handler gets it
        return SharedRecord(*record, fault=fault, attempt=attempt)
    return SharedRecord(*record, attempt=attempt)._replace(value=value)
