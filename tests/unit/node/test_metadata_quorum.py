"""The metadata quorum of a real node: snapshots and the next start, an older release's directory, addresses."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tailrace.metadata.commands import TopicSpec
from tailrace.model.errors import CorruptRecords, KafkaError
from tailrace.net.connection import Address
from tailrace.node.metadata_quorum import Collector
from tailrace.node.node import Node
from tailrace.node.settings.config import NodeConfig
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.control import LeaderChangeMessage, LeaderChangeVoter, build_control_batch
from tailrace.raft.voters import ReplicaKey
from testkit.quorum.controller_commands import create_topics

METADATA = "__cluster_metadata-0"
FOUNDING = "00000000000000000000-0000000000.checkpoint"


def fail(fault: BaseException) -> None:
    raise fault


def serve(directory: Path, story: Callable[[Node], Awaitable[None]], **settings: str) -> None:
    """Run a node in this directory for as long as the story takes."""
    told = {"log.dirs": str(directory), "listeners": "127.0.0.1:0"}
    told.update({name.replace("_", "."): text for name, text in settings.items()})

    async def tell() -> None:
        node = Node(NodeConfig(told), on_fatal=fail)
        await node.start()
        try:
            await story(node)
        finally:
            await node.stop()

    asyncio.run(tell())


async def create(node: Node, *names: str, partitions: int = 1) -> None:
    assert node.quorum is not None
    answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    topics = tuple(TopicSpec(name=name, num_partitions=partitions, replication_factor=1) for name in names)
    node.quorum.controller.submit(create_topics(*topics), answered.set_result)
    assert not isinstance(await asyncio.wait_for(answered, 20), KafkaError)


def checkpoints(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / METADATA).glob("*.checkpoint"))


async def nothing(_: Node) -> None:
    pass


def test_a_new_node_writes_down_that_it_founded_a_quorum_of_one_directory(tmp_path: Path) -> None:
    seen: list[ReplicaKey] = []

    async def look(node: Node) -> None:
        assert node.quorum is not None
        seen.extend(node.quorum.host.node.voters.keys)

    serve(tmp_path, look)
    assert checkpoints(tmp_path) == [FOUNDING]
    written = (tmp_path / METADATA / FOUNDING).read_bytes()
    serve(tmp_path, look)
    assert (tmp_path / METADATA / FOUNDING).read_bytes() == written
    assert seen[0] == seen[1]
    assert any(seen[0].directory_id)


def test_a_node_snapshots_when_enough_has_been_written_and_starts_again(tmp_path: Path) -> None:
    settings = {"metadata_log_max_record_bytes_between_snapshots": "3000"}

    async def fill(node: Node) -> None:
        for number in range(10):
            await create(node, f"topic-{number}", partitions=8)

    async def look(node: Node) -> None:
        assert node.quorum is not None
        image = node.quorum.controller.image
        assert sorted(image.topics) == sorted(f"topic-{number}" for number in range(10))
        assert all(len(topic.partitions) == 8 for topic in image.topics.values())

    serve(tmp_path, fill, **settings)
    snapshots = [name for name in checkpoints(tmp_path) if name != FOUNDING]
    assert snapshots
    serve(tmp_path, look, **settings)


def test_a_log_without_directory_ids_goes_on_as_a_quorum_of_one(tmp_path: Path) -> None:
    """Files of an earlier release: no founding checkpoint, no voters in the log, kraft.version 0 in quorum-state."""
    state = tmp_path / METADATA / "quorum-state"
    serve(tmp_path, lambda node: create(node, "orders"))
    log = tmp_path / METADATA / "00000000000000000000.log"
    log.write_bytes(_without_voters(log.read_bytes()))
    (tmp_path / METADATA / FOUNDING).unlink()
    (tmp_path / METADATA / "recovery-point-offset-checkpoint").unlink()
    state.write_text(
        '{"clusterId":"","leaderId":1,"leaderEpoch":1,"votedId":1,"appliedOffset":0,"currentVoters":[{"voterId":1}],'
        '"data_version":0}'
    )

    async def look(node: Node) -> None:
        assert node.quorum is not None
        assert "orders" in node.quorum.controller.image.topics
        assert node.quorum.host.node.voters.is_dynamic
        assert '"data_version":1' in state.read_text()

    serve(tmp_path, look)
    assert checkpoints(tmp_path) == [FOUNDING]


def _without_voters(content: bytes) -> bytes:
    """The log of a release without directory ids: the control batch names the leader, three times."""
    voter = LeaderChangeVoter(voter_id=1)
    change = LeaderChangeMessage(leader_id=1, voters=(voter,), granting_voters=(voter,))
    parts = []
    for position, header in iter_batches(content):
        batch: bytes | bytearray = content[position : position + header.size_bytes]
        if header.is_control:
            batch = build_control_batch(
                (change,) * header.records_count,
                timestamp=header.max_timestamp,
                base_offset=header.base_offset,
                leader_epoch=header.partition_leader_epoch,
            )
        parts.append(bytes(batch))
    return b"".join(parts)


def test_a_log_without_its_clusters_id_is_not_given_another(tmp_path: Path) -> None:
    serve(tmp_path, nothing)
    meta = tmp_path / "meta.properties"
    meta.write_text("".join(line + "\n" for line in meta.read_text().splitlines() if "cluster.id" not in line))
    with pytest.raises(CorruptRecords, match=r"has no cluster\.id, and the log beside it is a cluster's: restore it"):
        serve(tmp_path, nothing)


def test_a_controller_is_looked_for_at_the_addresses_in_the_settings(tmp_path: Path) -> None:
    async def look(node: Node) -> None:
        quorum = node.quorum
        assert quorum is not None
        assert quorum.address_of(-2) == Address("127.0.0.1", 9)
        assert quorum.address_of(7) == Address("127.0.0.1", 10)
        assert quorum.address_of(8) is None

    serve(tmp_path, nothing)  # it votes alone, and settings name others later
    settings = {
        "listeners": "127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "controller_listener_names": "CONTROLLER",
        "controller_quorum_voters": "7@127.0.0.1:10",
        "controller_quorum_bootstrap_servers": "127.0.0.1:9",
    }
    serve(tmp_path, look, **settings)


def test_a_request_that_fits_at_a_broker_fits_at_a_controller_in_an_envelope(tmp_path: Path) -> None:
    create_topics, envelope = 19, 58

    async def look(node: Node) -> None:
        limits = {listener.name: listener.limits for listener in node._listeners}
        most = limits["PLAINTEXT"].frame_limit(create_topics, is_trusted=True)
        room = limits["CONTROLLER"].frame_limit(envelope, is_trusted=False) - most
        assert room >= 64 << 10, "for the envelope, and the client it names"
        seen.append(room)

    seen: list[int] = []
    settings = {"listeners": "127.0.0.1:0,CONTROLLER://127.0.0.1:0", "controller_listener_names": "CONTROLLER"}
    serve(tmp_path, look, **settings)
    serve(tmp_path, look, socket_request_max_bytes=str(1 << 20), message_max_bytes=str(1 << 20), **settings)
    assert len(seen) == 2


async def test_a_start_that_waits_for_others_can_be_given_up(tmp_path: Path) -> None:
    settings = {
        "log.dirs": str(tmp_path),
        "process.roles": "broker",
        "listeners": "127.0.0.1:0",
        "controller.quorum.bootstrap.servers": "127.0.0.1:9",
    }

    for _ in range(2):  # the directory is free again
        starting = asyncio.ensure_future(Node(NodeConfig(settings), on_fatal=fail).start())
        await asyncio.sleep(0.1)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_the_collector_rests_until_the_last_long_work_is_over() -> None:
    collector = Collector()
    collector.long_work(True)
    collector.long_work(True)
    assert not gc.isenabled()
    collector.long_work(False)
    assert not gc.isenabled()
    collector.long_work(False)
    assert gc.isenabled()


def test_objects_made_in_long_work_are_frozen_for_the_collector() -> None:
    collector = Collector()
    collector.long_work(True)
    made = [[number] for number in range(1_000)]
    before = gc.get_freeze_count()
    collector.long_work(False)
    assert gc.get_freeze_count() >= before + len(made)
