"""The monitoring endpoints of a node: `/metrics` for Prometheus, `/healthz` for supervisors.

A node without `metrics.listener` has none of this, and does not import what makes the page.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from tailrace.node.metrics.measurements import NodeParts, measure
from tailrace.node.metrics.pages import Page, PageServer

_STUCK_FLUSH_SECONDS = 15.0
"""A disk that takes this long for one round is as good as gone."""


class Monitoring:
    """The pages of one node: `bind`, `start` and `stop`, once each."""

    _parts: NodeParts
    """The measured parts, from `start` on."""

    def __init__(self, *, host: str, max_partitions: int) -> None:
        self._max_partitions = max_partitions
        self._server = PageServer({"/metrics": self.metrics, "/healthz": self.health}, host=host)
        self._under_way: asyncio.Task[Page] | None = None

    async def bind(self, port: int) -> tuple[str, int]:
        """Take the port; returns where the pages will be. Raises OSError."""
        await self._server.bind(port)
        return self._server.address

    async def start(self, parts: NodeParts) -> None:
        """Serve the pages."""
        self._parts = parts
        await self._server.start()

    async def stop(self) -> None:
        """Serve nothing any more."""
        self._server.stop()
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.wait([self._under_way])

    async def metrics(self) -> Page:
        """All measurements. A scrape while a page is being made gets that one: frequent scrapes cost no more."""
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._make_metrics())
        return await asyncio.shield(self._under_way)

    async def _make_metrics(self) -> Page:
        measurements = await measure(self._parts, max_partitions=self._max_partitions)
        render, content_type = await asyncio.to_thread(_load_page)
        body = await asyncio.to_thread(render, measurements)
        return Page(body=body, content_type=content_type)

    async def health(self) -> Page:
        """Whether the node can do its work."""
        seconds = max(thread.round_seconds for thread in self._parts.flush_threads)
        if seconds > _STUCK_FLUSH_SECONDS:
            return Page(
                body=f"the disk has been flushing for {seconds:.0f} s\n".encode("ascii"),
                status=HTTPStatus.SERVICE_UNAVAILABLE,
            )
        return Page(body=b"ok\n")


def _load_page() -> tuple[Callable[..., bytes], str]:
    """Import the page's code, at the first scrape: a node is ready before."""
    from tailrace.node.metrics.page import CONTENT_TYPE, render

    return render, CONTENT_TYPE
