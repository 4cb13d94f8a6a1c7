"""The monitoring endpoints of a node over HTTP: `/metrics` for Prometheus, `/healthz` for supervisors.

A node without `metrics.listener` does not serve these pages, and does not import the modules that make the metrics
page.

Only GET is served, one request per connection. Any bytes may come to the port, and a web page may make a browser send
requests to the port:
1. a request has 8 KiB and 5 seconds, its answer 10 seconds; 16 connections may be open at once;
2. the Host header must be an address or the configured name of the listener: otherwise a web page could reach the port
   by a foreign name that resolves to the listener's address (DNS rebinding);
3. an answer never repeats a part of its request.
"""

import asyncio
import importlib
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from tailrace.node.metrics.measurements import NodeParts, measure

_logger = logging.getLogger("tailrace.node")

_MAX_HEAD_BYTES: Final = 8 * 1024
_REQUEST_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 10.0
_MAX_CONNECTIONS: Final = 16
_PAGE: Final = "tailrace.node.metrics.page"
_PLAIN: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = _PLAIN


MakePage = Callable[[], Awaitable[Page]]


class PageServer:
    """Serves pages by their path."""

    def __init__(self, pages: Mapping[str, MakePage], *, host: str) -> None:
        """`host` is the configured host, a legal value of the Host header."""
        self._pages = pages
        self._host = host.lower()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.address: tuple[str, int] = (host, 0)
        """The address of the server, from `bind` on."""

    async def bind(self, port: int) -> None:
        """Take the port; no client can connect before `start`. Raises OSError."""
        try:
            self._server = await asyncio.start_server(
                self._serve, self._host, port, limit=_MAX_HEAD_BYTES, start_serving=False
            )
        except OSError as fault:
            reason = fault.strerror or str(fault)
            raise OSError(fault.errno, f"cannot listen on {self._host}:{port} (metrics.listener): {reason}") from None
        host, bound = self._server.sockets[0].getsockname()[:2]
        self.address = (host, bound)

    async def start(self) -> None:
        """Listen."""
        assert self._server is not None, "it is bound"
        await self._server.start_serving()

    def stop(self) -> None:
        """Listen no more and drop every connection."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection. Must not raise: asyncio would log each exception that a foreign client causes."""
        if len(self._writers) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await _read_head(reader)
            page = await self._answer(head)
            async with asyncio.timeout(_ANSWER_SECONDS):
                writer.write(_encode(page))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError):
            pass  # the client has gone, or is too slow
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answer(self, head: bytes | None) -> Page:
        """The page for this request, or a page that names the error."""
        if head is None:
            return _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        method, path, hosts = _parse(head)
        if not path:
            return _error(HTTPStatus.BAD_REQUEST)
        if len(hosts) != 1 or not self._is_known_host(hosts[0]):
            return _error(HTTPStatus.MISDIRECTED_REQUEST if hosts else HTTPStatus.BAD_REQUEST)
        if method != "GET":
            return _error(HTTPStatus.METHOD_NOT_ALLOWED)
        make = self._pages.get(path)
        if make is None:
            return _error(HTTPStatus.NOT_FOUND)
        try:
            return await make()
        except Exception:
            _logger.exception("event=page-failed path=%s", path)
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _is_known_host(self, text: str) -> bool:
        name = text.lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") == 1:
            name = name.partition(":")[0]
        if name in ("localhost", self._host):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


async def _read_head(reader: asyncio.StreamReader) -> bytes | None:
    """The request up to its empty line; None if the empty line does not come within the limits."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return None


def _parse(head: bytes) -> tuple[str, str, list[str]]:
    """Method, path and Host headers; an empty path if this is not HTTP."""
    request_line, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = request_line.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0") or not words[1].startswith("/"):
        return "", "", []
    headers = [line.partition(":") for line in lines]
    hosts = [value.strip() for name, _, value in headers if name.lower() == "host"]
    return words[0], words[1].partition("?")[0], hosts


def _error(status: HTTPStatus) -> Page:
    return Page(body=f"{status.value} {status.phrase}\n".encode("ascii"), status=status)


def _encode(page: Page) -> bytes:
    status = page.status
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "Connection: close",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
    ]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        head.append("Allow: GET")
    return "\r\n".join((*head, "", "")).encode("ascii") + page.body


_STUCK_FLUSH_SECONDS = 15.0
"""A disk that takes this long for a single sync counts as failed. The limit is for a sync, not for a round, since a
round over thousands of logs has thousands of syncs."""


class Monitoring:
    """The pages of one node: `bind`, then `start`, then `stop`, once."""

    _parts: NodeParts
    """The measured parts, from `start` on."""

    def __init__(self, *, host: str, max_partitions: int) -> None:
        self._max_partitions = max_partitions
        self._server = PageServer({"/metrics": self.metrics, "/healthz": self.health}, host=host)
        self._under_way: asyncio.Task[Page] | None = None

    async def bind(self, port: int) -> tuple[str, int]:
        """Take the port; returns the address of the pages. Raises OSError."""
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
        """The page of all metrics. A scrape that comes while a page is being made gets that page, so frequent scrapes
        cost no more."""
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._make_metrics())
        return await asyncio.shield(self._under_way)

    async def _make_metrics(self) -> Page:
        walked = await measure(self._parts, max_partitions=self._max_partitions)
        page = await asyncio.to_thread(importlib.import_module, _PAGE)  # at the first scrape: a node is ready before
        body = await asyncio.to_thread(page.render, page.take(self._parts, walked))
        return Page(body=body, content_type=page.CONTENT_TYPE)

    async def health(self) -> Page:
        """Whether the node can do its work."""
        seconds = max(thread.stalled_seconds for thread in self._parts.flush_threads)
        if seconds > _STUCK_FLUSH_SECONDS:
            return Page(
                body=f"the disk has been flushing for {seconds:.0f} s\n".encode("ascii"),
                status=HTTPStatus.SERVICE_UNAVAILABLE,
            )
        return Page(body=b"ok\n")
