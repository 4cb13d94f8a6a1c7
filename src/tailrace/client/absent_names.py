"""Texts about names that a package lacks: the name that takes their place, or the nearest name of the package."""

from collections.abc import Iterable, Mapping
from typing import Final

from tailrace.model.settings import nearest

_CLIENTS: Final = ("Admin", "Consumer", "KeyedConsumer", "Producer", "RangedFetch")

_BLOCKING: Final = {
    **{f"Kafka{name}": f"the blocking client is tailrace.{name}" for name in ("Consumer", "Producer", "Admin")},
    **dict.fromkeys(("KafkaAdminClient", "AdminClient"), "the blocking client is tailrace.Admin"),
    "DeserializingConsumer": "tailrace.Consumer has key_deserializer and value_deserializer",
    "SerializingProducer": "tailrace.Producer has key_serializer and value_serializer",
    "ShareConsumer": "tailrace.KeyedConsumer shares partitions by key",
}
"""Blocking clients of other packages."""

_ASYNCIO: Final = {
    **{f"{mark}{name}": f"the asyncio client is tailrace.aio.{name}" for name in _CLIENTS for mark in ("Async", "Aio")},
    **{f"AIOKafka{name}": f"the asyncio client is tailrace.aio.{name}" for name in ("Consumer", "Producer")},
    **{f"AIO{name}": f"the asyncio client is tailrace.aio.{name}" for name in _CLIENTS},
    "AIOKafkaAdminClient": "the asyncio client is tailrace.aio.Admin",
}
"""Asyncio clients, by names of other packages, and by names that the classes have inside of Tailrace."""

_VALUES: Final = {
    "Cluster": "it is tailrace.testing.Cluster",
    "KafkaException": "the error of every call is tailrace.KafkaError",
    "KafkaTimeoutError": "a time-out is a tailrace.KafkaError with the code REQUEST_TIMED_OUT, or a TimeoutError",
    "KafkaConnectionError": "it is a tailrace.KafkaError with the code NETWORK_EXCEPTION",
    "Message": "a record is a tailrace.ConsumerRecord",
    "OffsetAndTimestamp": "offsets_for_times() returns the offsets",
    "TopicConfig": "the settings of a topic are configs={...} of tailrace.NewTopic",
}
"""Values and errors of other packages."""

_ELSEWHERE: Final[Mapping[str, str]] = {**_BLOCKING, **_ASYNCIO, **_VALUES}


def absence(package: str, name: str, known: Iterable[str], values: Iterable[str] = ()) -> str:
    """The text about a name that the package lacks. `values`: names that are imported from `tailrace` instead."""
    text = f"{package} has no name {name!r}"
    if name in values:
        return f"{text}; it is tailrace.{name}"
    near = nearest(name, known)
    hint = _ELSEWHERE.get(name) or (f"did you mean {near!r}?" if near else "")
    return f"{text}; {hint}" if hint else text
