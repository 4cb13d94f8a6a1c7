"""Texts about records and lists of records that are used as the messages and results of other clients."""

import inspect
import re
import traceback
from typing import Any, Final, TypeVar

from tailrace.client.hints.call_hints import AbsentName

C = TypeVar("C", bound=type)
T = TypeVar("T")

_FIELDS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_CALLED_FIELD: Final = re.compile(rf"\.({'|'.join(_FIELDS)})\(")

_A_LIST: Final = "poll() returns a list of records, empty after the time-out: for record in consumer.poll(timeout)"
_NO_DICT: Final = "poll() returns a list of records; getmany(timeout_ms=...) returns a dict by partition"
_ABSENT_FROM_A_POLL: Final = {
    **dict.fromkeys((*_FIELDS, "error"), _A_LIST),
    **dict.fromkeys(("items", "keys", "values", "get"), _NO_DICT),
}

_ABSENT_FROM_A_RECORD: Final = {
    "error": "poll() raises the error of a call, and the property `trouble` of the consumer has a fault that goes on",
    "latency": "only timestamp is known, in ms since 1970",
    "leader_epoch": "a commit without offsets has the leader epochs by itself",
    "timestamp_type": "the setting message.timestamp.type of the topic says whose time timestamp is",
    "serialized_key_size": "len(record.key) is the size",
    "serialized_value_size": "len(record.value) is the size",
}


def hinted_record(record: C) -> C:
    """The decorator of a class of records: attributes of other clients' records are explained."""
    return _hinted(record, "a record", _ABSENT_FROM_A_RECORD)


def _hinted(kind: C, subject: str, absent: dict[str, str]) -> C:
    for name, hint in absent.items():
        setattr(kind, name, AbsentName(name, f"{subject} has no {name!r}; {hint}"))

    def shown(value: object) -> list[str]:
        return [name for name in object.__dir__(value) if not isinstance(_static(kind, name), AbsentName)]

    setattr(kind, "__dir__", shown)  # noqa: B010 - a checker knows no such assignment to a class
    return kind


def _static(kind: type, name: str) -> Any:
    return inspect.getattr_static(kind, name, None)


class PolledRecords(list[T]):
    """The records of a poll: a list, which explains the attributes of other clients' results."""

    __slots__ = ()


_hinted(PolledRecords, "the list of a poll", _ABSENT_FROM_A_POLL)


def note_called_field(fault: BaseException | None) -> None:
    """Add a note to the TypeError of a line such as `record.value()`, which is right in confluent-kafka.

    A value is an object of the user, so that the call itself cannot be explained: the client sees the exception when
    the caller's block ends.
    """
    if not isinstance(fault, TypeError) or not str(fault).endswith(" object is not callable"):
        return
    frames = traceback.extract_tb(fault.__traceback__)
    called = _CALLED_FIELD.search(frames[-1].line or "") if frames else None
    if called is None:
        return
    note = f"the {called[1]} of a record is an attribute: record.{called[1]}, without parentheses"
    if note not in getattr(fault, "__notes__", ()):
        fault.add_note(note)
