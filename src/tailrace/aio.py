"""The clients for asyncio: each belongs to one event loop. Values and errors are imported from `tailrace`."""

import warnings

from tailrace.client.admin.admin import AsyncAdmin as Admin
from tailrace.client.consumer import AsyncConsumer as Consumer
from tailrace.client.keyed.keyed_consumer import AsyncKeyedConsumer as KeyedConsumer
from tailrace.client.producer import AsyncProducer as Producer
from tailrace.client.reading.ranged_fetch import AsyncRangedFetch as RangedFetch

__all__ = ("Admin", "Consumer", "KeyedConsumer", "Producer", "RangedFetch")


def __getattr__(name: str) -> object:
    if name == "SharedConsumer":  # deprecated: accepted in this release, for the last time (decision 0093)
        warnings.warn(
            "tailrace.aio.SharedConsumer is deprecated: its name is KeyedConsumer", DeprecationWarning, stacklevel=2
        )
        return KeyedConsumer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
