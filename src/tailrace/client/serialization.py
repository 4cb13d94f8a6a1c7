"""Serializers of producers and deserializers of consumers: functions between values of the user and bytes. Pure.

None stays None, and no function is called for it: a record without a value is the deletion of its key (a tombstone).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # for the default: a client without functions takes and returns bytes

    K = TypeVar("K", default=bytes)
    V = TypeVar("V", default=bytes)
else:
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

T = TypeVar("T")


def serialized(value: T | None, serializer: Callable[[T], bytes] | None, what: str) -> Any:
    """The bytes of a key or value; without a serializer the value itself. An exception of the serializer gets a note
    with `what`."""
    if serializer is None or value is None:
        return value
    try:
        return serializer(value)
    except Exception as fault:
        fault.add_note(f"raised by {what} of a producer; the record is not sent")
        raise


def deserialized(data: bytes | None, deserializer: Callable[[bytes], T] | None) -> Any:
    """The key or value of these bytes; without a deserializer the bytes."""
    return data if deserializer is None or data is None else deserializer(data)
