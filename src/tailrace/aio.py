"""The clients for asyncio: each belongs to one event loop. Values and errors are imported from `tailrace`."""

import warnings

import tailrace
from tailrace.client.admin.admin import AsyncAdmin as Admin
from tailrace.client.consumer import AsyncConsumer as Consumer
from tailrace.client.hints.absent_names import absence
from tailrace.client.keyed.keyed_consumer import AsyncKeyedConsumer as KeyedConsumer
from tailrace.client.producer import AsyncProducer as Producer
from tailrace.client.reading.ranged_fetch import AsyncRangedFetch as RangedFetch
from tailrace.model.late_names import absent_name

__all__ = ("Admin", "Consumer", "KeyedConsumer", "Producer", "RangedFetch")


def __getattr__(name: str) -> object:
    if name == "SharedConsumer":  # deprecated: accepted in this release, for the last time (decision 0093)
        warnings.warn(
            "tailrace.aio.SharedConsumer is deprecated: its name is KeyedConsumer", DeprecationWarning, stacklevel=2
        )
        return KeyedConsumer
    raise absent_name(__name__, name, _absence)


def _absence(name: str) -> str:
    return absence(__name__, name, __all__, tailrace.__all__)
