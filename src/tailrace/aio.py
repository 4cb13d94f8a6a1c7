"""The clients for asyncio: each belongs to one event loop. Values and errors are imported from `tailrace`."""

from tailrace.client.admin.admin import Admin
from tailrace.client.consumer import Consumer
from tailrace.client.producer import Producer
from tailrace.client.ranged_fetch import RangedFetch

__all__ = ("Admin", "Consumer", "Producer", "RangedFetch")
