"""Apache Kafka's command-line tools for clusters: features, registrations, moves and elections.

The tools ask a controller with two brokers, the second of them only registered, so that a move begins and goes on. The
answers of a whole node are in test_kafka_tools.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop.kafka_tools import Dump, run
from tailrace.metadata.commands import ReplicaAssignment, TopicSpec
from tailrace.metadata.feature_levels import METADATA_VERSION, OLDEST_METADATA_VERSION
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from testkit.nodes.admin_server import AdminServer
from testkit.nodes.data_path import BROKER
from testkit.quorum.controller_commands import create_topics

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("kafka_tools")]

Tool = Callable[..., Dump]
OTHER = BrokerId(BROKER + 1)
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def server() -> Iterator[AdminServer]:
    with AdminServer() as server:
        yield server


@pytest.fixture
def tool(server: AdminServer) -> Tool:
    """Runs a tool against the controller."""

    def on_controller(script: str, *options: str) -> Dump:
        return run(script, *options, "--bootstrap-server", server.bootstrap_servers)

    return on_controller


def create(server: AdminServer, *replicas: int) -> None:
    assignment = ReplicaAssignment(partition=0, broker_ids=tuple(map(BrokerId, replicas)))
    server.submit(create_topics(TopicSpec(name="orders", assignments=(assignment,))))


def test_features_are_described_and_levels_are_changed_or_only_tried(server: AdminServer) -> None:
    def features(*options: str) -> str:
        return run("kafka-features", "--bootstrap-server", server.bootstrap_servers, *options).out

    def described() -> dict[str, str]:
        line = next(line for line in features("describe").splitlines() if "metadata.version" in line)
        return dict(part.split(": ") for part in line.split("\t"))

    before = described()
    assert (before["SupportedMinVersion"], before["SupportedMaxVersion"]) == ("4.1-IV0", "4.1-IV1"), "26 and 27"
    assert before["FinalizedVersionLevel"] == "4.1-IV1"
    assert int(before["Epoch"]) == server.node.log.end_offset - 1
    newest, oldest = (f"metadata.version={level}" for level in (METADATA_VERSION, OLDEST_METADATA_VERSION))
    assert features("upgrade", "--feature", newest, "--dry-run") == (
        f"metadata.version can be upgraded to {METADATA_VERSION}.\n"
    )
    assert server.node.controller.image.metadata_version == METADATA_VERSION
    assert features("downgrade", "--feature", oldest) == (
        f"metadata.version was downgraded to {OLDEST_METADATA_VERSION}.\n"
    )
    assert server.node.controller.image.metadata_version == OLDEST_METADATA_VERSION
    unknown = f"metadata.version={METADATA_VERSION + 1}"
    with pytest.raises(AssertionError, match="Could not upgrade metadata.version .* this controller knows 26 to 27"):
        features("upgrade", "--feature", unknown)


def test_a_broker_that_has_stopped_is_unregistered(server: AdminServer, tool: Tool) -> None:
    server.register(OTHER)
    listed = tool("kafka-cluster", "list-endpoints", "--include-fenced-brokers").out.splitlines()
    states = {words[0]: words[4] for words in map(str.split, listed[1:])}
    assert states == {str(BROKER): "unfenced", str(OTHER): "fenced"}
    with pytest.raises(AssertionError, match=f"broker {BROKER} is running: stop it first"):
        tool("kafka-cluster", "unregister", "--id", str(BROKER))
    told = tool("kafka-cluster", "unregister", "--id", str(OTHER)).out
    assert told.strip() == f"Broker {OTHER} is no longer registered."
    with pytest.raises(AssertionError, match="BrokerIdNotRegisteredException"):
        tool("kafka-cluster", "unregister", "--id", str(OTHER))


def test_a_move_is_planned_begun_shown_and_cancelled(server: AdminServer, tool: Tool, tmp_path: Path) -> None:
    server.start(OTHER)
    create(server, BROKER)
    topics, moves = tmp_path / "topics.json", tmp_path / "moves.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "orders"}]}))

    def reassign(*options: str) -> list[str]:
        return tool("kafka-reassign-partitions", *options).out.splitlines()

    def move(action: str) -> list[str]:
        # Throttles are settings of each broker, which the broker that is only registered cannot be asked for.
        preserve = () if action == "--execute" else ("--preserve-throttles",)
        return reassign(action, "--reassignment-json-file", str(moves), *preserve)

    planned = reassign("--generate", "--topics-to-move-json-file", str(topics), "--broker-list", str(OTHER))
    moves.write_text(planned[planned.index("Proposed partition reassignment configuration") + 1])
    assert json.loads(moves.read_text())["partitions"][0]["replicas"] == [OTHER]
    assert "Successfully started partition reassignment for orders-0" in move("--execute")
    assert f"orders-0: replicas: {OTHER},{BROKER}. adding: {OTHER}. removing: {BROKER}." in reassign("--list")
    assert "Reassignment of partition orders-0 is still in progress." in move("--verify")
    assert "Successfully cancelled partition reassignment for: orders-0" in move("--cancel")
    state = server.node.controller.image.partition(*ORDERS)
    assert state is not None
    assert (state.replicas, state.adding_replicas, state.removing_replicas) == ((BROKER,), (), ())


def test_a_preferred_replica_that_cannot_lead_is_named(server: AdminServer, tool: Tool) -> None:
    server.register(OTHER)
    create(server, OTHER, BROKER)
    with pytest.raises(AssertionError, match="PreferredLeaderNotAvailableException"):
        tool("kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions")
