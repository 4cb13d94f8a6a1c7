"""A whole node, in this process, and readers whose fetch sessions (KIP-227) mean it no good.

An honest reader keeps a session of its own all the time: after each attack that still has the same id, gets what is
written and nothing else, and the node holds no more sessions and partitions than it may.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from crash.topics import make_topic
from scenarios.hostility.attacked_node import AttackedNode, RawClient
from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.fetch_session import session_cache
from tailrace.fetch_session.session_cache import FetchSessionCache
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import TopicId
from tailrace.protocol.headers import decode_response
from tailrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.testing import Cluster

pytestmark = pytest.mark.usefixtures("no_handler_failed")

TOPIC = "honest"
NO_TOPIC = bytes(range(16))
SLOTS = 8
MAX_EPOCH = 2**31 - 1


class SessionClient(RawClient):
    """A consumer that says about its session whatever a test has it say."""

    topic_id = NO_TOPIC
    session_id = 0
    epoch = 0

    async def fetch_in_session(
        self,
        offsets: Mapping[int, int] | None = None,
        *,
        forgotten: Iterable[int] = (),
        topic_id: bytes | None = None,
        replica: tuple[int, int] = (-1, -1),
        leader_epoch: int = -1,
        session: tuple[int, int] | None = None,
        max_wait_ms: int = 0,
        twice: bool = False,
    ) -> FetchResponse:
        """A fetch with these offsets by partition. Its session id and epoch are what is due, or `session`."""
        named_id = topic_id or self.topic_id
        partitions = tuple(
            FetchPartition(
                partition=number,
                fetch_offset=offset,
                partition_max_bytes=1 << 16,
                current_leader_epoch=leader_epoch,
            )
            for number, offset in (offsets or {}).items()
        )
        session_id, epoch = session or (self.session_id, self.epoch)
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=replica[0], replica_epoch=replica[1]),
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            session_id=session_id,
            session_epoch=epoch,
            topics=(FetchTopic(topic_id=named_id, partitions=partitions * (1 + twice)),) if partitions else (),
            forgotten_topics_data=tuple(
                [ForgottenTopic(topic_id=named_id, partitions=gone)] if (gone := tuple(forgotten)) else ()
            ),
        )
        response: FetchResponse = await self.ask(request, 17)
        return response

    async def open(self, offsets: Mapping[int, int], **options: Any) -> list[PartitionData]:
        """Begin a session."""
        response = await self.fetch_in_session(offsets, session=(0, 0), **options)
        assert response.session_id > 0, "no session"
        self.session_id, self.epoch = response.session_id, 1
        return answers(response)

    async def next(self, offsets: Mapping[int, int] | None = None, **options: Any) -> list[PartitionData]:
        """Go on with the session."""
        response = await self.fetch_in_session(offsets, **options)
        assert (response.error_code, response.session_id) == (0, self.session_id)
        self.epoch += 1
        return answers(response)


def answers(response: FetchResponse) -> list[PartitionData]:
    return [data for topic in response.responses for data in topic.partitions]


class NodeWithSessions(AttackedNode):
    """A node with two listeners and few slots, on which an honest reader has a session."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory,
            {
                "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
                "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
                "inter.broker.listener.name": "INSIDE",
                "max.incremental.fetch.session.cache.slots": str(SLOTS),
            },
        )
        broker = self.node._broker
        assert broker is not None
        self.cache: FetchSessionCache = broker.broker.fetch_sessions.cache
        image = broker.broker.controller.image
        self.topic_id: TopicId = image.topics[TOPIC].topic_id
        self.reader = self.run(self.connect())
        self.offset = 0
        self.run(self.reader.open({0: 0}))

    async def connect(self, listener: int = 0) -> SessionClient:
        client = await SessionClient.connect(self.node.advertised[listener].port)
        client.topic_id = self.topic_id
        return client

    async def check(self) -> None:
        """The honest reader's session goes on: it gets one new record, once."""
        await super().check()
        (data,) = await self.reader.next({0: self.produced - 1})
        assert (data.error_code, data.high_watermark) == (0, self.produced)
        assert await self.reader.next({0: self.produced}) == []
        assert len(self.cache) <= SLOTS

    def close(self) -> None:
        self.reader.close()
        super().close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeWithSessions]:
    node = NodeWithSessions(tmp_path_factory.mktemp("sessions"))
    yield node
    node.close()


@pytest.fixture
def hostile(node: NodeWithSessions) -> Iterator[SessionClient]:
    """A client whose session is gone at the end of the test."""
    client = node.run(node.connect())
    yield client
    for session in tuple(node.cache.sessions()):
        if session.session_id != node.reader.session_id:
            node.cache.remove(session)
    client.close()
    node.run(node.check())


IMITATIONS: list[tuple[str, dict[str, Any]]] = [
    ("a broker that there is not", {"replica": (7, 0), "leader_epoch": 0}),
    ("this broker", {"replica": (1, 0), "leader_epoch": 0}),
    ("a broker without an epoch", {"replica": (7, -1), "leader_epoch": 0}),
    ("a broker of the largest id", {"replica": (2**31 - 1, 2**62), "leader_epoch": -1}),
]


@pytest.mark.parametrize("imitation", [options for _, options in IMITATIONS], ids=[name for name, _ in IMITATIONS])
def test_a_forged_follower_gets_no_record_and_no_priority(
    node: NodeWithSessions, hostile: SessionClient, imitation: dict[str, Any]
) -> None:
    async def attack() -> None:
        await node.check()
        (data,) = await hostile.open({0: 0}, **imitation)
        assert data.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH)
        assert not data.records
        (again,) = await hostile.next({0: 2**40}, **imitation)
        assert again.error_code == data.error_code
        assert not any(session.is_privileged for session in node.cache.sessions())

    node.run(attack())


def test_forged_followers_evict_no_session(node: NodeWithSessions, hostile: SessionClient) -> None:
    async def attack() -> None:
        clients = [await node.connect() for _ in range(2 * SLOTS)]
        responses = [
            await client.fetch_in_session({0: 0}, session=(0, 0), replica=(7, 0), leader_epoch=0) for client in clients
        ]
        assert [response.session_id > 0 for response in responses] == [True] * (SLOTS - 1) + [False] * (SLOTS + 1)
        assert all(answers(response) for response in responses), "without a session they are answered all the same"
        await node.check()
        for client in clients:
            client.close()

    node.run(attack())


def test_the_session_of_another_reader_is_not_found(node: NodeWithSessions, hostile: SessionClient) -> None:
    """By its id: of another replica id, at another listener, and of an id that is only near."""

    async def attack() -> None:
        reader = node.reader
        theirs = reader.session_id, reader.epoch
        outside = await node.connect(listener=1)
        attempts = [
            await outside.fetch_in_session({0: 0}, session=theirs),
            await hostile.fetch_in_session({0: 0}, session=theirs, replica=(7, 0)),
            await hostile.fetch_in_session(forgotten=[0], session=theirs, replica=(1, 0)),
            await hostile.fetch_in_session({0: 0}, session=(reader.session_id ^ 1, reader.epoch)),
            await hostile.fetch_in_session({0: 0}, session=(0, 5)),
        ]
        assert [response.error_code for response in attempts] == [ErrorCode.FETCH_SESSION_ID_NOT_FOUND] * 5
        assert not any(answers(response) for response in attempts)
        await node.check()
        for epoch in (0, -1):  # a full fetch that would close the session of its sender
            (data,) = answers(await outside.fetch_in_session({0: 0}, session=(reader.session_id, epoch)))
            assert data.error_code == 0
        await node.check()
        outside.close()

    node.run(attack())


@pytest.mark.parametrize(
    "epoch", ["replayed", "long replayed", "skipped", "far skipped", MAX_EPOCH, -2, -MAX_EPOCH - 1], ids=str
)
def test_a_skipped_or_replayed_epoch_changes_nothing(
    node: NodeWithSessions, hostile: SessionClient, epoch: int | str
) -> None:
    async def attack() -> None:
        opened = await hostile.open({0: node.produced, 1: 0})
        assert [data.error_code for data in opened] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        await hostile.next(forgotten=[1])
        assert await hostile.next() == []
        await node.check()
        due = hostile.epoch
        named = {"replayed": due - 1, "long replayed": 1, "skipped": due + 1, "far skipped": due + 1_000}
        sent = named[epoch] if isinstance(epoch, str) else epoch
        response = await hostile.fetch_in_session({5: 0}, forgotten=[0], session=(hostile.session_id, sent))
        assert (response.error_code, answers(response)) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])
        (data,) = await hostile.next()
        assert (data.partition_index, data.high_watermark, data.error_code) == (0, node.produced, 0)
        assert data.records, "the partition has not been forgotten, and 5 has not been added"

    node.run(attack())


def test_a_waiting_request_ends_with_an_error_when_another_takes_its_place(
    node: NodeWithSessions, hostile: SessionClient
) -> None:
    """Two connections use one session: the first request waits, the second has the next epoch."""

    async def attack() -> None:
        await hostile.open({0: node.produced})
        hostile.send_request(
            FetchRequest(max_wait_ms=50_000, min_bytes=1, session_id=hostile.session_id, session_epoch=1, topics=()),
            17,
        )
        other = await node.connect()
        refused = ErrorCode.INVALID_FETCH_SESSION_EPOCH
        while True:  # the two connections are read in any order
            response = await other.fetch_in_session(session=(hostile.session_id, 2))
            if response.error_code != refused:
                break
        assert (response.error_code, answers(response)) == (0, [])
        waited = decode_response(FetchResponse, 17, await hostile.receive())[1]
        assert (waited.error_code, answers(waited)) == (refused, [])
        other.close()

    node.run(attack())


def test_a_negative_session_id_is_no_session(node: NodeWithSessions, hostile: SessionClient) -> None:
    async def attack() -> None:
        for session_id in (-1, -node.reader.session_id, -MAX_EPOCH - 1):
            response = await hostile.fetch_in_session({0: 0}, session=(session_id, 1))
            assert (response.error_code, answers(response)) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
            response = await hostile.fetch_in_session({0: 0}, session=(session_id, -1))
            assert (response.error_code, response.session_id, len(answers(response))) == (0, 0, 1)

    node.run(attack())


def test_partitions_that_were_never_added_are_forgotten_without_harm(
    node: NodeWithSessions, hostile: SessionClient
) -> None:
    async def attack() -> None:
        await hostile.open({0: node.produced})
        assert await hostile.next(forgotten=[9, 9, -1, MAX_EPOCH]) == []
        assert await hostile.next(forgotten=[0], topic_id=NO_TOPIC) == []
        await node.check()
        (data,) = await hostile.next()
        assert data.partition_index == 0
        ended = await hostile.fetch_in_session(forgotten=[0, 0, 0])
        assert (ended.error_code, ended.session_id, answers(ended)) == (0, 0, [])
        gone = await hostile.fetch_in_session(session=(hostile.session_id, hostile.epoch + 1))
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    node.run(attack())


def test_a_partition_that_is_named_twice_is_there_once(node: NodeWithSessions, hostile: SessionClient) -> None:
    async def attack() -> None:
        opened = await hostile.open({0: node.produced}, twice=True)
        assert {data.partition_index for data in opened} == {0}
        await hostile.next({0: node.produced}, twice=True)
        assert {session.partition_count for session in node.cache.sessions()} == {1}
        await node.check()
        (data,) = await hostile.next({0: node.produced - 1}, twice=True)
        assert data.records
        response = await hostile.fetch_in_session({0: node.produced}, forgotten=[0])
        assert (response.error_code, response.session_id, answers(response)) == (0, 0, []), "forgotten last, it is gone"

    node.run(attack())


def test_an_unknown_topic_id_is_an_error_of_its_partition(node: NodeWithSessions, hostile: SessionClient) -> None:
    unknown, absent = ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def attack() -> None:
        (data,) = await hostile.open({0: 0}, topic_id=NO_TOPIC)
        assert data.error_code == unknown
        named = await hostile.next({-1: 0}, topic_id=bytes(16))
        assert [data.error_code for data in named] == [unknown], "an error comes once"
        named = await hostile.next({-5: 0, MAX_EPOCH: -(2**63)})
        assert sorted(data.error_code for data in named) == [absent, absent]
        assert [data.error_code for data in await hostile.next({0: node.produced})] == [0]
        await node.check()
        assert [data.error_code for data in await hostile.next()].count(0) == 1

    node.run(attack())


def test_a_session_that_grows_without_end_ends_at_its_limit(
    node: NodeWithSessions, hostile: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request exceeds the limits of a frame. The partitions of the session are no longer kept."""
    monkeypatch.setattr(session_cache, "MAX_PARTITIONS", 5_000)

    async def attack() -> None:
        await hostile.open(dict.fromkeys(range(2_000), 0))
        sizes = []
        for first in range(2_000, 1_000_000, 2_000):
            response = await hostile.fetch_in_session(dict.fromkeys(range(first, first + 2_000), 0))
            hostile.epoch += 1
            sizes.append(node.cache.partition_count)
            if not response.session_id:
                break
        assert sizes == [4_001, 1], "the honest reader's one partition stays"
        gone = await hostile.fetch_in_session()
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    node.run(attack())


def test_a_request_of_a_million_partitions_closes_its_connection(
    node: NodeWithSessions, hostile: SessionClient
) -> None:
    async def attack() -> None:
        client = await node.connect()
        partitions = (FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1),) * 1_000_000
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            session_epoch=0,
            topics=(FetchTopic(topic_id=node.topic_id, partitions=partitions),),
        )
        client.send_request(request, 17)
        await client.wait_for_close()
        client.close()

    node.run(attack())


@pytest.mark.timeout(300)
def test_consumers_are_served_without_sessions_where_followers_have_all_slots() -> None:
    """Two slots for two followers: a consumer gets all records and no session, and followers keep theirs."""
    config = {"max.incremental.fetch.session.cache.slots": "2", "min.insync.replicas": "3"}
    with Cluster(brokers=3, config=config) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            make_topic(cluster.bootstrap_servers, NewTopic(name=TOPIC, partitions=3, replication_factor=3))
            leaders = {
                described.partition: described.leader for described in admin.describe_topics([TOPIC])[0].partitions
            }
            topic_id = admin.describe_topics([TOPIC])[0].topic_id
        with Producer(cluster.bootstrap_servers) as producer:
            sent = [producer.send(TOPIC, b"%d" % number, partition=number % 3) for number in range(300)]
            for pending in sent:
                pending.result()  # stored by both followers

        async def consume(partition: int) -> list[bytes | None]:
            host, _, port = cluster.address(leaders[partition]).rpartition(":")
            client = await SessionClient.connect(int(port))
            client.topic_id = topic_id
            found: list[bytes | None] = []
            while len(found) < 100:
                response = await client.fetch_in_session({partition: len(found)}, session=(0, 0), max_wait_ms=500)
                assert (response.error_code, response.session_id, host) == (0, 0, "127.0.0.1")
                (data,) = answers(response)
                assert data.records is not None
                for position, _ in iter_batches(data.records):
                    found += [record.value for record in read_records(data.records, position)]
            client.close()
            return found

        for partition in leaders:
            assert asyncio.run(consume(partition)) == [b"%d" % number for number in range(partition, 300, 3)]
        with Producer(cluster.bootstrap_servers) as producer:
            assert producer.send(TOPIC, b"after", partition=0).result().offset == 100
