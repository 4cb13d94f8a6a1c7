"""The metadata quorum of a node among nodes that are played here: where it asks, and when it has caught up."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import METADATA_TOPIC_ID
from tailrace.net.connection import Address
from tailrace.net.listener import Listener
from tailrace.net.turns import Turns
from tailrace.node import peers
from tailrace.node.event_loop import LoopClock
from tailrace.node.metadata_quorum import MetadataQuorum
from tailrace.node.settings.config import NodeConfig
from tailrace.protocol.messages import fetch, quorum
from tailrace.protocol.messages.registrations import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tailrace.protocol.registry import api_of
from tailrace.raft.effects import AppendAsLeader
from tailrace.raft.roles import Follower
from tailrace.raft.voters import ReplicaKey, Voter, VoterListener, VoterSet
from tailrace.server.assembly.metadata_replica import MetadataReplica
from tailrace.server.context import RequestContext
from tailrace.server.dispatch import Dispatcher
from tailrace.storage import OsFiles
from tailrace.storage.checkpoints import MetaProperties
from testkit.nodes.listeners import default_listener, silent_turns

TOPIC = "__cluster_metadata"
NOWHERE = Address("127.0.0.1", 9)
VOTE = quorum.VoteRequest(cluster_id="mine", topics=())
FETCH = fetch.FetchRequest(cluster_id="mine", max_wait_ms=0, min_bytes=0, topics=())
BEAT = BrokerHeartbeatRequest(
    broker_id=1, broker_epoch=5, current_metadata_offset=5, want_fence=False, want_shut_down=False
)


def fail(broken: BaseException) -> None:
    raise broken


@dataclass
class FakeNode:
    """The attributes of a replica's machine that `MetadataQuorum` reads."""

    role: Any
    high_watermark: int | None = None
    voters: VoterSet = field(default_factory=lambda: VoterSet(()))
    epoch: int = 3
    leader_id: int = 2


@dataclass
class FakeHost:
    node: FakeNode
    failure: None = None


@dataclass
class FakeController:
    applied_end_offset: int = 0
    is_active: bool = False


@dataclass
class FakeReplica:
    host: FakeHost
    controller: FakeController


class Played:
    """A node that gives the answers passed to it and notes the requests."""

    def __init__(self, turns: Turns, **answers: Any) -> None:
        self.asked: list[type] = []
        self._answers = answers
        handled = (quorum.VoteRequest, fetch.FetchRequest, BrokerHeartbeatRequest)
        dispatcher = Dispatcher({api_of(request): self for request in handled}, on_broken_invariant=fail)
        self.listener = default_listener("CONTROLLER", turns=turns, on_frame=dispatcher.on_frame)
        self.listener.bind(["127.0.0.1"], 0)

    def handle(self, request: Any, context: RequestContext) -> Any:
        self.asked.append(type(request))
        return self._answers[type(request).__name__]

    @property
    def address(self) -> Address:
        return Address(*self.listener.addresses[0])


@pytest.fixture(autouse=True)
def connecting_takes_as_long_as_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_CONNECT_TIMEOUT_MS", 30_000)


class LeaderSearchBench:
    """Node 1: its settings place node 2 at `place`, and the voters of the log at `stated` if there are any."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._loop = asyncio.get_running_loop()
        self.turns = silent_turns(call_soon=self._loop.call_soon, on_broken_invariant=fail)
        self.controller = FakeController()
        self._listeners: list[Listener] = []
        self._quorum: MetadataQuorum | None = None

    async def play(self, **answers: Any) -> Played:
        played = Played(self.turns, **answers)
        self._listeners.append(played.listener)
        await played.listener.start()
        return played

    def open(self, node: FakeNode, place: Address = NOWHERE) -> MetadataQuorum:
        settings = {
            "node.id": "1",
            "process.roles": "broker",
            "log.dirs": self._directory,
            "listeners": "127.0.0.1:0",
            "controller.quorum.request.timeout.ms": "30000",
            "controller.quorum.voters": f"2@{place.host}:{place.port}",
        }
        opened = self._quorum = MetadataQuorum(
            NodeConfig(settings),
            files=OsFiles(),
            directory=self._directory,
            identity=MetaProperties(cluster_id="mine", node_id=1),
            clock=LoopClock(self._loop, self.turns),
            turns=self.turns,
            on_fatal=fail,
        )
        opened._replica = cast("MetadataReplica", FakeReplica(FakeHost(node), self.controller))
        return opened

    async def close(self) -> None:
        if self._quorum is not None:
            self._quorum._replica = None  # without a replica, `close` closes the log
            self._quorum.close()
        for listener in self._listeners:
            await listener.stop()


def run(directory: Path, story: Callable[[LeaderSearchBench], Awaitable[None]]) -> None:
    async def place() -> None:
        bench = LeaderSearchBench(directory)
        try:
            await story(bench)
        finally:
            await bench.close()

    asyncio.run(place())


async def ask(asker: MetadataQuorum, request: Any, node_id: int = 2) -> Any:
    replied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    asker.send(node_id, request, replied.set_result)
    return await asyncio.wait_for(replied, 60)


def stated(address: Address) -> VoterSet:
    endpoint = VoterListener("CONTROLLER", address.host, address.port)
    return VoterSet.of([Voter(ReplicaKey(2, b"directory of two"), (endpoint,))])


def wrong_voter() -> quorum.VoteResponse:
    part = quorum.VotedPartition(
        partition_index=0, error_code=ErrorCode.INVALID_VOTER_KEY, leader_id=3, leader_epoch=3, vote_granted=False
    )
    return quorum.VoteResponse(topics=(quorum.VotedTopic(topic_name=TOPIC, partitions=(part,)),))


def led_by(leader_id: int) -> fetch.FetchResponse:
    part = fetch.PartitionData(
        partition_index=0,
        high_watermark=5,
        aborted_transactions=None,
        records=b"",
        current_leader=fetch.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=3),
    )
    topic = fetch.FetchableTopicResponse(topic=TOPIC, topic_id=METADATA_TOPIC_ID, partitions=(part,))
    return fetch.FetchResponse(responses=(topic,))


@pytest.mark.parametrize(
    "stranger", [wrong_voter(), quorum.VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, topics=())], ids=repr
)
def test_a_controller_is_asked_elsewhere_when_another_answers_in_its_place(tmp_path: Path, stranger: Any) -> None:
    async def story(bench: LeaderSearchBench) -> None:
        old, new = await bench.play(VoteRequest=stranger), await bench.play(VoteRequest=quorum.VoteResponse(topics=()))
        asker = bench.open(FakeNode(role=None, voters=stated(old.address)), place=new.address)
        assert await ask(asker, VOTE) == stranger
        assert await ask(asker, VOTE) == quorum.VoteResponse(topics=())
        assert (len(old.asked), len(new.asked)) == (1, 1)

    run(tmp_path, story)


def test_a_heartbeat_goes_where_the_leader_was_found_and_moves_nothing(tmp_path: Path) -> None:
    async def story(bench: LeaderSearchBench) -> None:
        beaten = BrokerHeartbeatResponse(should_shut_down=False)
        old = await bench.play(VoteRequest=wrong_voter(), BrokerHeartbeatRequest=beaten)
        new = await bench.play(FetchRequest=led_by(2), BrokerHeartbeatRequest=beaten)
        asker = bench.open(FakeNode(role=None, voters=stated(old.address)), place=new.address)
        assert await ask(asker, BEAT) is None  # the node at that address is not known yet
        await ask(asker, VOTE)
        assert await ask(asker, BEAT) is None
        assert (await ask(asker, FETCH)).responses
        assert await ask(asker, BEAT) == beaten
        assert old.asked == [quorum.VoteRequest]
        await new.listener.stop()
        while await ask(asker, BEAT) is not None:
            pass
        assert asker.address_of(2) == new.address

    run(tmp_path, story)


def filled(asker: MetadataQuorum, count: int) -> None:
    asker._log.append_as_leader(AppendAsLeader(0, 1, (b"value",) * count), now_ms=0)


@pytest.mark.parametrize(
    ("leader_high_watermark", "applied", "high_watermark", "is_caught_up"),
    [
        (-1, 4, 4, False),  # the leader has only just been elected, or sends a snapshot: 4 is this node's own snapshot
        (4, 4, 4, False),  # it knows no more than its own snapshot
        (9, 9, 9, False),
        (10, 9, 10, False),
        (10, 10, 10, True),
        (12, 10, 10, True),
    ],
)
def test_a_node_has_caught_up_when_it_has_applied_what_its_own_log_held(
    tmp_path: Path, leader_high_watermark: int, applied: int, high_watermark: int, is_caught_up: bool
) -> None:
    async def story(bench: LeaderSearchBench) -> None:
        role = Follower(2, 0, has_fetched=True, leader_high_watermark=leader_high_watermark)
        asker = bench.open(FakeNode(role=role, high_watermark=high_watermark))
        filled(asker, 10)
        bench.controller.applied_end_offset = applied
        waiting = asyncio.ensure_future(asker.caught_up())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waiting.done() == is_caught_up
        role.leader_high_watermark, bench.controller.applied_end_offset = 10, 10
        await asyncio.wait_for(waiting, 20)

    run(tmp_path, story)


def test_records_that_the_leader_has_cut_off_are_not_waited_for(tmp_path: Path) -> None:
    async def story(bench: LeaderSearchBench) -> None:
        role = Follower(2, 0, has_fetched=True)
        asker = bench.open(FakeNode(role=role, high_watermark=0))
        filled(asker, 4)
        asker._log.append_as_leader(AppendAsLeader(4, 2, (b"value",) * 6), now_ms=0)
        waiting = asyncio.ensure_future(asker.caught_up())
        await asyncio.sleep(0)
        asker._log.truncate(4)
        role.leader_high_watermark = bench.controller.applied_end_offset = 4
        await asyncio.wait_for(waiting, 20)

    run(tmp_path, story)


def test_the_active_controller_does_not_wait(tmp_path: Path) -> None:
    async def story(bench: LeaderSearchBench) -> None:
        asker = bench.open(FakeNode(role=None))
        waiting = asyncio.ensure_future(asker.caught_up())
        await asyncio.sleep(0)
        assert not waiting.done()
        bench.controller.is_active = True
        await asyncio.wait_for(waiting, 20)

    run(tmp_path, story)
