"""The clients for asyncio: each belongs to one event loop. Values and errors are imported from `tailrace`."""

from tailrace.client.admin.admin import AsyncAdmin as Admin
from tailrace.client.consumer import AsyncConsumer as Consumer
from tailrace.client.producer import AsyncProducer as Producer
from tailrace.client.reading.ranged_fetch import AsyncRangedFetch as RangedFetch
from tailrace.client.sharing.shared_consumer import AsyncSharedConsumer as SharedConsumer

__all__ = ("Admin", "Consumer", "Producer", "RangedFetch", "SharedConsumer")
