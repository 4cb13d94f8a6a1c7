"""Requests to other nodes over sockets: each is answered once, in a turn, and does not wait behind a long poll."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from tailrace.net.connection import Address
from tailrace.net.listener import Listener
from tailrace.node import peers
from tailrace.node.peers import Peers
from tailrace.protocol.messages.fetch import FetchRequest, FetchResponse
from tailrace.protocol.messages.quorum import VoteRequest, VoteResponse
from tailrace.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tailrace.protocol.registry import api_of
from tailrace.server.context import RequestContext
from tailrace.server.dispatch import Dispatcher, HandlerTable, by_api
from testkit.nodes.listeners import default_listener, silent_turns
from testkit.nodes.ports import ScriptedHandler

VOTE = VoteRequest(cluster_id=None, topics=())
FETCH = FetchRequest(max_wait_ms=100, min_bytes=0, topics=())


def fail(broken: BaseException) -> None:
    raise broken


class Voter:
    """Answers votes at once; keeps fetches."""

    def __init__(self) -> None:
        self.fetches: list[RequestContext] = []
        self.has_fetch = asyncio.Event()
        self.connections: set[int] = set()
        self.versions: list[int] = []

    def handle(self, request: Any, context: RequestContext) -> Any:
        self.connections.add(id(context.connection))
        self.versions.append(context.api_version)
        if isinstance(request, FetchRequest):
            self.fetches.append(context)
            self.has_fetch.set()
            return None
        return VoteResponse(topics=())


@pytest.fixture(autouse=True)
def connecting_takes_as_long_as_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_CONNECT_TIMEOUT_MS", 30_000)


class PeersBench:
    """A node that asks, and a node that is asked."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.turns = silent_turns(call_soon=loop.call_soon, on_broken_invariant=fail)
        self.voter = Voter()
        self.addresses: dict[int, Address] = {}
        self.peers = Peers(address_of=self.addresses.get, turns=self.turns, client_id="test", timeout_ms=30_000)
        self.listener: Listener | None = None

    async def listen(self, handlers: HandlerTable | None = None) -> None:
        mine = by_api({VoteRequest: self.voter, FetchRequest: self.voter})
        dispatcher = Dispatcher(handlers or mine, on_broken_invariant=fail)
        self.listener = default_listener("CONTROLLER", turns=self.turns, on_frame=dispatcher.on_frame)
        self.listener.bind(["127.0.0.1"], 0)
        await self.listener.start()
        self.addresses[2] = Address(*self.listener.addresses[0])

    async def close(self) -> None:
        self.peers.close()
        if self.listener is not None:
            await self.listener.stop()

    async def ask(self, request: Any, node_id: int = 2, **wanted: Any) -> Any:
        replied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.peers.send(node_id, request, replied.set_result, **wanted)
        assert not replied.done(), "never inside of send"
        return await asyncio.wait_for(replied, 60)


@asynccontextmanager
async def peers_bench() -> AsyncIterator[PeersBench]:
    bench = PeersBench()
    try:
        yield bench
    finally:
        await bench.close()


@asynccontextmanager
async def listening(handlers: HandlerTable | None = None) -> AsyncIterator[PeersBench]:
    async with peers_bench() as bench:
        await bench.listen(handlers)
        yield bench


async def test_an_answer_of_a_peer_comes_back_and_connections_are_used_again() -> None:
    async with listening() as bench:
        for _ in range(3):
            assert await bench.ask(VOTE) == VoteResponse(topics=())
        assert len(bench.voter.connections) == 1


async def test_a_node_that_refuses_connections_is_reported_and_one_without_an_address_is_not() -> None:
    async with peers_bench() as bench:
        refused: list[int] = []
        bench.peers.on_refused = lambda node_id, address: refused.append(node_id)
        await bench.listen()
        with socket.socket() as bound:  # the port is taken, and nothing listens there
            bound.bind(("127.0.0.1", 0))
            bench.addresses[3] = Address(*bound.getsockname())
            assert await bench.ask(VOTE, 3) is None
        assert await bench.ask(VOTE, 4) is None
        assert await bench.ask(VOTE, 2) is not None
        assert refused == [3]


async def test_a_vote_does_not_wait_behind_a_fetch_that_waits() -> None:
    async with listening() as bench:
        fetching = asyncio.ensure_future(bench.ask(FETCH))
        await asyncio.wait_for(bench.voter.has_fetch.wait(), 20)
        assert await bench.ask(VOTE) is not None
        assert not fetching.done()
        bench.turns.run(lambda: bench.voter.fetches[0].respond(FetchResponse(responses=())))
        assert isinstance(await fetching, FetchResponse)
        assert len(bench.voter.connections) == 2


async def test_a_question_about_a_transaction_does_not_wait_behind_markers_that_wait() -> None:
    """A partition that cannot commit keeps markers waiting; producers elsewhere have nothing to do with it."""
    markers, verification = WriteTxnMarkersRequest(markers=()), AddPartitionsToTxnRequest(transactions=())
    kept: list[RequestContext] = []
    has_markers = asyncio.Event()

    def handle(request: Any, context: RequestContext) -> Any:
        if isinstance(request, AddPartitionsToTxnRequest):
            return AddPartitionsToTxnResponse()
        kept.append(context)
        has_markers.set()
        return None

    handlers = {api_of(type(request)): ScriptedHandler(handle) for request in (markers, verification)}
    async with listening(handlers) as bench:
        ending = asyncio.ensure_future(bench.ask(markers))
        await asyncio.wait_for(has_markers.wait(), 20)
        assert await bench.ask(verification, oldest_version=4, timeout_ms=10_000) is not None
        assert not ending.done()
        bench.turns.run(lambda: kept[0].respond(WriteTxnMarkersResponse(markers=())))
        assert isinstance(await ending, WriteTxnMarkersResponse)


@pytest.mark.parametrize("address", [None, Address("127.0.0.1", 1)])
async def test_a_peer_without_a_listener_is_an_answer_too(address: Address | None) -> None:
    async with peers_bench() as bench:
        if address is not None:
            bench.addresses[2] = address
        assert await bench.ask(VOTE, timeout_ms=500) is None


async def test_a_peer_without_an_answer_in_time_is_given_up() -> None:
    async with listening() as bench:
        assert await bench.ask(FETCH, timeout_ms=50) is None
        assert await bench.ask(VOTE) is not None


async def test_no_peer_is_asked_in_a_version_below_the_oldest_permitted() -> None:
    async with listening() as bench:
        assert await bench.ask(VOTE, oldest_version=99) is None
        assert bench.voter.versions == []
        assert await bench.ask(VOTE, oldest_version=2) is not None
        assert bench.voter.versions == [2]


async def test_an_api_that_a_peer_does_not_offer_is_no_answer() -> None:
    async with peers_bench() as bench:
        await bench.listen({api_of(FetchRequest): bench.voter})
        assert await bench.ask(VOTE) is None


async def test_a_peer_that_comes_back_elsewhere_is_asked_there() -> None:
    async with listening() as bench:
        assert await bench.ask(VOTE) is not None
        assert bench.listener is not None
        await bench.listener.stop()
        while await bench.ask(VOTE, timeout_ms=200) is not None:
            pass
        await bench.listen()
        assert await bench.ask(VOTE) is not None


async def test_too_many_requests_to_a_peer_are_refused_and_the_others_answered() -> None:
    async with listening() as bench:
        asked = [asyncio.ensure_future(bench.ask(VOTE)) for _ in range(300)]
        answers = await asyncio.gather(*asked)
        assert sum(answer is None for answer in answers) == 300 - 256
        assert await bench.ask(VOTE) is not None


async def test_many_fetches_from_a_peer_leave_room_for_other_requests() -> None:
    async with listening() as bench:
        told: list[Any] = []
        for _ in range(256):
            bench.peers.send(2, FETCH, told.append)
        assert await bench.ask(VOTE) is not None
        assert await bench.ask(FETCH) is None
        assert told == []


async def test_no_callback_of_the_peers_comes_after_their_close() -> None:
    async with listening() as bench:
        told: list[Any] = []
        bench.peers.send(2, FETCH, told.append)
        bench.peers.send(3, VOTE, told.append)
        bench.peers.close()
        bench.peers.send(2, VOTE, told.append)
        await asyncio.sleep(0.05)
        assert told == []


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_request_to_a_peer_leaves_before_the_close_that_follows_it(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """So a node that stops ends its fetch sessions behind the fetches under way."""

    async def story() -> None:
        async with listening() as bench:
            bench.peers.send(2, FETCH, lambda _: None)
            await asyncio.wait_for(bench.voter.has_fetch.wait(), 60)
            bench.voter.has_fetch.clear()
            bench.peers.send(2, FETCH, lambda _: None)
            bench.peers.close()
            await asyncio.wait_for(bench.voter.has_fetch.wait(), 60)
            assert len(bench.voter.fetches) == 2

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(story())
