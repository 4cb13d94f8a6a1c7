"""The pages that a node serves over HTTP, to honest readers and to attackers."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tailrace.node.metrics import monitoring
from tailrace.node.metrics.monitoring import Page, PageServer


@pytest.fixture(autouse=True)
def requests_may_come_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine too; requests that do not end at all have a test of their own."""
    monkeypatch.setattr(monitoring, "_REQUEST_SECONDS", 60)


async def hello() -> Page:
    return Page(body=b"hello\n")


async def fail() -> Page:
    raise ZeroDivisionError("a secret")


@asynccontextmanager
async def serving(host: str = "127.0.0.1") -> AsyncIterator[PageServer]:
    server = PageServer({"/hello": hello, "/fail": fail}, host=host)
    await server.bind(0)
    await server.start()
    try:
        yield server
    finally:
        server.stop()
        await asyncio.sleep(0)


async def exchange(server: PageServer, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(request)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def get(path: str = "/hello", host: str = "127.0.0.1:9644") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1")


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


async def test_a_page_of_metrics_is_served_and_the_connection_closed() -> None:
    async with serving() as server:
        answer = await exchange(server, get("/hello?x=1"))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Length: 6\r\n" in head
        assert b"Connection: close" in head
        assert body == b"hello\n"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9644", "LOCALHOST", "[::1]:9644", "10.1.2.3:80"])
async def test_the_page_server_takes_addresses_and_localhost_in_the_host_header(host: str) -> None:
    async with serving() as server:
        assert status_of(await exchange(server, get(host=host))) == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:9644", "", "[", "x:y:z"]
)
async def test_the_page_server_refuses_a_foreign_name_whatever_it_resolves_to(host: str) -> None:
    """DNS rebinding: a web page's own name leads to this machine."""
    async with serving() as server:
        assert status_of(await exchange(server, get(host=host))) == 421


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(get("/nothing"), 404, id="unknown path"),
        pytest.param(get("/fail"), 500, id="page that fails"),
        pytest.param(get("/../../etc/passwd"), 404, id="path that climbs"),
        pytest.param(b"POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", 405, id="POST"),
        pytest.param(b"HEAD /hello HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, id="HEAD"),
        pytest.param(b"GET /hello HTTP/1.1\r\n\r\n", 400, id="no host"),
        pytest.param(b"GET /hello HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", 421, id="two hosts"),
        pytest.param(b"GET /hello HTTP/2.0\r\nHost: localhost\r\n\r\n", 400, id="HTTP/2"),
        pytest.param(b"GET http://evil/hello HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, id="proxy request"),
        pytest.param(b"GET /hello\r\n\r\n", 400, id="HTTP/0.9"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, id="TLS hello"),
        pytest.param(b"\x00\x00\x00\x14\x00\x12\x00\x03\r\n\r\n", 400, id="Kafka request"),
        pytest.param(b"\r\n\r\n", 400, id="nothing"),
        pytest.param(b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431, id="endless path"),
        pytest.param(b"GET /hello HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 9_000, 431, id="endless headers"),
    ],
)
async def test_any_other_request_for_a_metrics_page_is_refused_without_an_echo(
    request_bytes: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server:
        answer = await exchange(server, request_bytes)
        # A request that is refused half read may end in a reset, and the answer is lost with it.
        assert status_of(answer) in ((0, status) if status == 431 else (status,))
        for word in (b"evil", b"passwd", b"secret", b"ZeroDivision", b"aaaa"):
            assert word not in answer
        assert status_of(await exchange(server, get())) == 200


async def test_the_page_server_drops_a_request_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "_REQUEST_SECONDS", 0.05)
    async with serving() as server:
        assert await exchange(server, b"GET /hello HT") == b""


async def test_the_page_server_drops_a_reader_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "_ANSWER_SECONDS", 0.05)

    async def much() -> Page:
        return Page(body=bytes(64 << 20))

    server = PageServer({"/much": much}, host="127.0.0.1")
    await server.bind(0)
    await server.start()
    reader, writer = await asyncio.open_connection(*server.address, limit=1024)
    writer.write(get("/much"))
    while not server._writers:  # noqa: ASYNC110 - the state of sockets sets no event
        await asyncio.sleep(0)
    while server._writers:  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(64 << 20)
    writer.close()
    server.stop()


async def test_the_page_server_drops_the_connection_after_16() -> None:
    async with serving() as server:
        idle = [await asyncio.open_connection(*server.address) for _ in range(16)]
        while len(server._writers) < 16:  # noqa: ASYNC110 - the state of sockets sets no event
            await asyncio.sleep(0)
        assert await exchange(server, get()) == b""
        idle[0][1].close()
        while len(server._writers) == 16:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert status_of(await exchange(server, get())) == 200
        for _, writer in idle:
            writer.close()


async def test_random_bytes_get_an_error_or_nothing_from_the_page_server() -> None:
    dice = random.Random(20261120)
    async with serving() as server:
        for _ in range(200):
            noise = bytearray(get()) if dice.random() < 0.5 else bytearray(dice.randbytes(dice.randrange(1, 400)))
            for _ in range(dice.randrange(1, 6)):
                noise[dice.randrange(len(noise))] = dice.randrange(256)
            answer = await exchange(server, bytes(noise) + b"\r\n\r\n")
            assert status_of(answer) in (0, 200, 400, 404, 405, 421)
        assert status_of(await exchange(server, get())) == 200
