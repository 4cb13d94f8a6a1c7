"""`brokers`, `quorum`, and the moves and elections of `topics`, with a cluster of two brokers."""

import io
import json
import re
from pathlib import Path

import pytest

from interop.librdkafka import librdkafka
from tailrace.client.admin.configs import BROKER as BROKER_RESOURCE
from tailrace.client.blocking import Admin, Producer
from tailrace.metadata.broker_commands import FenceBroker
from tailrace.metadata.commands import AlterPartition, InSyncChange, LeaveReason, ReplicaAssignment, TopicSpec
from tailrace.model.ids import NO_LEADER, BrokerId, format_topic_id
from tailrace.protocol.messages.log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tailrace.server.admin.log_dirs import DescribeLogDirsHandler
from tailrace.server.context import RequestContext
from tailrace.server.metadata import topic_partitions
from tailrace.server.slices import Stepwise
from testkit.nodes.admin_path import DIRECTORY_ID
from testkit.nodes.admin_server import AdminServer
from testkit.nodes.data_path import BROKER, CLUSTER_ID
from testkit.programs.commands import Run
from testkit.quorum.controller_commands import create_topics

OTHER = BrokerId(BROKER + 1)


def create(server: AdminServer, *replicas: int, topic: str = "orders") -> None:
    """A topic with one partition on these brokers."""
    assignment = ReplicaAssignment(partition=0, broker_ids=tuple(map(BrokerId, replicas)))
    server.submit(create_topics(TopicSpec(name=topic, assignments=(assignment,))))


def test_brokers_are_listed_with_their_states(server: AdminServer, run: Run) -> None:
    server.register(OTHER)
    _, port = server.bootstrap_servers.split(":")
    here = {"HOST": "127.0.0.1", "PORT": port, "RACK": "-"}
    assert run("brokers", "list").rows == [
        {"ID": str(BROKER), **here, "STATE": "unfenced", "CONTROLLER": "True"},
        {"ID": str(OTHER), **here, "STATE": "fenced", "CONTROLLER": "False"},
    ]
    as_json = json.loads(run("brokers", "list", "-o", "json").out)
    assert [(row["ID"], row["STATE"], row["RACK"]) for row in as_json] == [
        (BROKER, "unfenced", None),
        (OTHER, "fenced", None),
    ]


def test_a_broker_is_described_with_its_directories_and_settings(server: AdminServer, run: Run) -> None:
    create(server, BROKER)
    server.register(OTHER)
    with Admin(server.bootstrap_servers) as admin:
        admin.alter_configs(BROKER_RESOURCE, str(BROKER), {"log.retention.ms": "5000"})
    here, other = json.loads(run("brokers", "describe", "-o", "json").out)
    (directory,) = here["LOG-DIRS"]
    assert (directory["PARTITIONS"], directory["ERROR"]) == (1, None)
    assert here["CONFIGS"] == {"broker.id": "1", "node.id": "1", "log.retention.ms": "5000"}
    assert (other["LOG-DIRS"], other["CONFIGS"]) == ([], {}), "a fenced broker is not asked"
    described = run("brokers", "describe", str(BROKER)).out
    assert "LOG-DIR " in described
    (configs,) = re.findall(r"Configs: (.*)\n", described)
    assert "log.retention.ms=5000" in configs.split(",")
    done = run("brokers", "describe", "7")
    assert (done.code, done.out) == (1, "")
    assert done.err == "tailrace: there is no broker 7 (`tailrace brokers list` shows which there are)\n"


def test_settings_of_brokers_change_while_they_run(server: AdminServer, run: Run) -> None:
    done = run("brokers", "alter", "--config", "min.insync.replicas=2", "--config", "log.retention.ms=7000")
    assert (done.code, done.err) == (0, "altered the settings of all brokers\n")
    done = run("brokers", "alter", str(BROKER), "--config", "log.retention.ms=5000", "-o", "json")
    assert json.loads(done.out) == [{"ID": BROKER, "CHANGES": {"log.retention.ms": "5000"}}]
    (here,) = json.loads(run("brokers", "describe", "-o", "json").out)
    assert (here["CONFIGS"]["log.retention.ms"], here["CONFIGS"]["min.insync.replicas"]) == ("5000", "2")
    assert run("brokers", "alter", str(BROKER), "--delete-config", "log.retention.ms").code == 0
    (here,) = json.loads(run("brokers", "describe", "-o", "json").out)
    assert here["CONFIGS"]["log.retention.ms"] == "7000"


def test_wrong_changes_of_brokers_are_refused(server: AdminServer, run: Run) -> None:
    assert run("brokers", "alter").code == 2
    done = run("brokers", "alter", "7", "--config", "log.retention.ms=1")
    assert (done.code, "there is no broker 7" in done.err) == (1, True)
    done = run("brokers", "alter", "--delete-config", "log.retentoin.ms")
    assert (done.code, done.err) == (
        1,
        "tailrace: Unknown broker config name: log.retentoin.ms; did you mean log.retention.ms?\n",
    )
    done = run("brokers", "alter", "--config", "min.insync.replicas=two")
    assert (done.code, "min.insync.replicas" in done.err) == (1, True)


def test_a_broker_is_unregistered_once_it_has_stopped(server: AdminServer, run: Run) -> None:
    server.register(OTHER)
    done = run("brokers", "unregister", str(BROKER))
    assert (done.code, done.err) == (1, f"tailrace: broker {BROKER} is running: stop it first, then unregister it\n")
    done = run("brokers", "unregister", str(OTHER), "-o", "json")
    assert (json.loads(done.out), done.err) == ([{"ID": OTHER}], f"unregistered broker {OTHER}\n")
    assert len(run("brokers", "list").rows) == 1


def test_the_quorum_is_described_in_kafkas_words(server: AdminServer, run: Run) -> None:
    told = dict(line.split(":", 1) for line in run("quorum", "describe", "--status").out.splitlines())
    words = {name: value.strip() for name, value in told.items()}
    end_offset = str(server.node.log.end_offset)
    assert (words["ClusterId"], words["LeaderId"], words["HighWatermark"]) == (CLUSTER_ID, str(BROKER), end_offset)
    assert (words["MaxFollowerLag"], words["MaxFollowerLagTimeMs"], words["CurrentObservers"]) == ("0", "0", "[]")
    voter = {
        "id": BROKER,
        "directoryId": format_topic_id(DIRECTORY_ID),
        "endpoints": [f"PLAINTEXT://{server.bootstrap_servers}"],
    }
    assert json.loads(words["CurrentVoters"]) == [voter]
    (as_json,) = json.loads(run("quorum", "describe", "-o", "json").out)
    assert list(as_json) == list(words)
    assert as_json["CurrentVoters"] == [voter]
    (row,) = run("quorum", "describe", "--replication").rows
    assert (row["NodeId"], row["LogEndOffset"], row["Lag"], row["Status"]) == (str(BROKER), end_offset, "0", "Leader")
    assert run("quorum", "describe", "--status", "--replication").code == 2


def test_replicas_are_moved_and_moves_are_shown_and_taken_back(server: AdminServer, run: Run) -> None:
    server.start(OTHER)
    create(server, BROKER)
    done = run("topics", "reassign", "orders", "--replicas", str(OTHER))
    move = {
        "Topic": "orders",
        "Partition": "0",
        "Replicas": f"{OTHER},{BROKER}",
        "AddingReplicas": str(OTHER),
        "RemovingReplicas": str(BROKER),
    }
    assert (done.code, done.rows, done.err) == (0, [move], "began to move 1 partition of topic orders\n")
    (as_json,) = json.loads(run("topics", "reassign", "-o", "json").out)
    assert as_json["AddingReplicas"] == [OTHER]
    done = run("topics", "reassign", "orders", "--cancel")
    assert (done.code, done.out) == (0, "")
    assert done.err == "took back the move of 1 partition of topic orders\nno replicas are being moved\n"


def test_a_move_that_only_removes_replicas_is_complete_at_once(server: AdminServer, run: Run) -> None:
    server.start(OTHER)
    create(server, BROKER, OTHER)
    done = run("topics", "reassign", "orders", "--replicas", str(BROKER))
    assert (done.code, done.out) == (0, "")
    changed = "replication factor 2 -> 1"
    assert done.err == f"began to move 1 partition of topic orders; {changed}\nthe move is complete\n"
    assert run("topics", "reassign", "orders").err == "no replicas are being moved\n"


def test_a_topic_whose_partitions_differ_shows_both_numbers_of_replicas(server: AdminServer, run: Run) -> None:
    server.start(OTHER)
    both = tuple(
        ReplicaAssignment(partition=number, broker_ids=(BrokerId(BROKER), BrokerId(OTHER))) for number in (0, 1)
    )
    server.submit(create_topics(TopicSpec(name="orders", assignments=both)))
    assert "ReplicationFactor: 2  " in run("topics", "describe", "orders").out
    done = run("topics", "reassign", "orders", "--partition", "0", "--replicas", str(BROKER))
    assert "began to move 1 partition of topic orders; replication factor 2 -> 1\n" in done.err
    assert "ReplicationFactor: 1-2  " in run("topics", "describe", "orders").out
    done = run("topics", "reassign", "orders", "--replicas", f"{BROKER},{OTHER}")
    assert "; replication factor 1-2 -> 2\n" in done.err
    done = run("topics", "reassign", "orders", "--replicas", f"{OTHER},{BROKER}")
    assert "replication factor" not in done.err.replace("1-2 -> 2", "")


def fence(server: AdminServer, broker_id: BrokerId) -> None:
    broker_epoch = server.node.controller.image.brokers[broker_id].broker_epoch
    server.submit(FenceBroker(broker_id=broker_id, broker_epoch=broker_epoch))


def test_a_topic_is_described_with_its_eligible_leaders(server: AdminServer, run: Run) -> None:
    """KIP-966: below min.insync.replicas a replica that leaves may still lead."""
    server.start(OTHER)
    assignment = ReplicaAssignment(partition=0, broker_ids=(BrokerId(BROKER), OTHER))
    settings = (("min.insync.replicas", "2"),)
    server.submit(create_topics(TopicSpec(name="orders", assignments=(assignment,), configs=settings)))
    fence(server, OTHER)
    row = run("topics", "describe", "orders").out.splitlines()[2]
    assert row.split() == ["orders", "0", str(BROKER), f"{BROKER},{OTHER}", str(BROKER), str(OTHER), "-"]
    fence(server, BrokerId(BROKER))
    (described,) = json.loads(run("topics", "describe", "orders", "-o", "json").out)
    (partition,) = described["Partitions"]
    assert (partition["Leader"], partition["Isr"]) == (None, [])
    assert (partition["Elr"], partition["LastKnownElr"]) == ([BROKER, OTHER], [BROKER])


def test_eligible_leaders_come_page_by_page(server: AdminServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_partitions, "MAX_PARTITIONS", 2)
    for topic in ("orders", "flights"):
        run("topics", "create", topic, "--partitions", "3")
    described = json.loads(run("topics", "describe", "orders", "flights", "-o", "json").out)
    elrs = [[partition["Elr"] for partition in topic["Partitions"]] for topic in described]
    assert elrs == [[[], [], []], [[], [], []]]


def test_a_cluster_without_eligible_leaders_is_described_as_before(run: Run) -> None:
    """Kafka before 3.8 has no DescribeTopicPartitions, and neither has librdkafka's mock cluster."""
    foreign = librdkafka().MockCluster()
    there = ("--bootstrap-server", foreign.bootstrap())
    with Producer(foreign.bootstrap()) as producer:
        producer.send("orders", b"makes the topic")
    done = run("topics", "describe", "orders", *there)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[2].split()[-2:] == ["N/A", "N/A"]
    (described,) = json.loads(run("topics", "describe", "orders", "-o", "json", *there).out)
    partition = described["Partitions"][0]
    assert len(partition["Isr"]) == 3
    assert (partition["Elr"], partition["LastKnownElr"]) == (None, None)
    del foreign  # the cluster lives as long as this


def test_a_node_that_is_no_voter_is_not_removed_and_the_voters_are_named(server: AdminServer, run: Run) -> None:
    done = run("quorum", "remove-controller", "--controller-id", "9")
    assert (done.code, done.out, done.err) == (1, "", f"tailrace: 9 is no voter; voters: {BROKER}\n")


def test_an_invalid_move_is_refused(server: AdminServer, run: Run) -> None:
    create(server, BROKER)
    for words in (["--replicas", "1"], ["--partition", "0"], ["orders", "--replicas", "1", "--cancel"]):
        assert run("topics", "reassign", *words).code == 2, words
    for replicas in ("", "a", "1,", "-1", "\N{SUPERSCRIPT TWO}"):
        assert run("topics", "reassign", "orders", f"--replicas={replicas}").code == 2, replicas
    done = run("topics", "reassign", "orders", "--replicas", "9")
    assert (done.code, done.err) == (1, "tailrace: orders-0: brokers [9] are not registered\n")
    done = run("topics", "reassign", "orders", "--partition", "5", "--replicas", "1")
    assert (done.code, done.out) == (1, "")
    assert "has partitions 0 to 0, not 5" in done.err


def test_elections_are_held_and_failures_are_reported(server: AdminServer, run: Run) -> None:
    server.register(OTHER)
    create(server, BROKER, topic="fine")
    create(server, OTHER, BROKER)
    done = run("topics", "elect")
    assert done.code == 1
    assert done.rows == [{"Topic": "orders", "Partition": "0", "Election": "PREFERRED_LEADER_NOT_AVAILABLE"}]
    assert done.err.endswith("tailrace: 1 election failed, see above\n")
    done = run("topics", "elect", "fine", "--partition", "0", "-o", "json")
    assert (done.code, json.loads(done.out), done.err) == (0, [], "no partition needs an election\n")
    done = run("topics", "elect", "fine", "--unclean")
    assert (done.code, done.err) == (0, "no partition needs an election\n"), "it has a leader"
    assert run("topics", "elect", "fine", "--force").code == 2
    assert run("topics", "elect", "fine", "--replica", "1").code == 2
    assert run("topics", "elect", "--unclean", "--replica", "1").code == 2
    assert run("topics", "elect", "--partition", "0").code == 2


def lose(server: AdminServer, *, good_end: int) -> None:
    """`orders` without a leader; this broker has a good log of this length, out of five records."""
    with server.lock:
        node = server.node
        for _ in range(5):
            node.produce("orders", b"value")
        node.table.get("orders", 0).log.condemn("bytes are others", offset=good_end)
        state = node.controller.image.partition("orders", 0)
        broker_epoch = node.controller.image.brokers[BROKER].broker_epoch
    assert state is not None
    change = InSyncChange(
        topic_id=state.topic_id,
        partition=0,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        in_sync_replicas=(),
        leaving=LeaveReason.LOST,
    )
    server.submit(
        AlterPartition(broker_id=BROKER, broker_epoch=broker_epoch, changes=(change,), secret=server.node.secret)
    )


def test_an_unclean_election_shows_the_losses_and_is_held_when_it_is_forced(server: AdminServer, run: Run) -> None:
    server.register(OTHER)
    create(server, BROKER)
    lose(server, good_end=3)
    done = run("topics", "elect", "orders", "--unclean")
    assert done.code == 0
    head, row = done.out.splitlines()
    assert head.split() == ["Topic", "Partition", "Replica", "State", "GoodEnd", "AcknowledgedEnd", "Lost", "Choice"]
    assert row.split() == ["orders", "0", str(BROKER), "damaged", "3", "5", "2", "recommended"]
    assert f"orders-0 on broker {BROKER}: damaged: bytes are others\n" in done.err
    assert f"orders-0: with broker {BROKER} up to 2 records are lost, from offset 3 on\n" in done.err
    assert done.err.splitlines()[-1].startswith("nothing was changed; --force elects the recommended replica")
    (row,) = json.loads(run("topics", "elect", "--unclean", "-o", "json").out)
    assert row == {
        "Topic": "orders",
        "Partition": 0,
        "Replica": BROKER,
        "State": "damaged",
        "GoodEnd": 3,
        "AcknowledgedEnd": 5,
        "Lost": 2,
        "Choice": "recommended",
        "Fault": "bytes are others",
    }
    assert server.state("orders").leader == NO_LEADER
    done = run("topics", "elect", "orders", "--unclean", "--force", "--replica", str(OTHER))
    assert (done.code, done.rows[0]["Election"]) == (1, "INVALID_REQUEST")
    assert f"broker {OTHER} has no replica of orders-0" in done.err
    done = run("topics", "elect", "orders", "--unclean", "--force")
    assert (done.code, done.rows[0]["Election"]) == (0, "elected")
    assert f"orders-0: broker {BROKER} is to lead; up to 2 records are given up\n" in done.err
    assert (server.state("orders").leader, server.state("orders").accepts_loss) == (BROKER, True)


def test_a_replica_that_cannot_be_reached_is_shown_and_not_chosen(server: AdminServer, run: Run) -> None:
    server.register(OTHER)
    create(server, BROKER, OTHER)
    lose(server, good_end=3)
    done = run("topics", "elect", "orders", "--unclean", "-o", "json")
    assert [(row["Replica"], row["State"], row["Lost"]) for row in json.loads(done.out)] == [
        (BROKER, "damaged", 2),
        (OTHER, "unreachable", None),
    ]
    assert "orders-0: a replica that cannot be asked may have more\n" in done.err
    done = run("topics", "elect", "orders", "--unclean", "--force", "--replica", str(OTHER))
    assert (done.code, done.rows[0]["Election"]) == (1, "ELIGIBLE_LEADERS_NOT_AVAILABLE")


def test_any_replica_is_elected_in_a_cluster_that_reports_no_log_ends(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Apache Kafka, which does not have Tailrace's fields."""
    handle = DescribeLogDirsHandler.handle

    def plain(
        self: DescribeLogDirsHandler, request: DescribeLogDirsRequest, context: RequestContext
    ) -> Stepwise[DescribeLogDirsResponse]:
        return handle(self, DescribeLogDirsRequest(topics=request.topics), context)

    monkeypatch.setattr(DescribeLogDirsHandler, "handle", plain)
    with AdminServer() as server:
        monkeypatch.setenv("TAILRACE_BOOTSTRAP", server.bootstrap_servers)
        create(server, BROKER)
        lose(server, good_end=3)
        done = run("topics", "elect", "orders", "--unclean")
        assert (done.code, done.rows[0]["Election"]) == (0, "elected")
        assert done.err == "this cluster tells nothing about its copies: any replica that is alive is elected\n"
        assert (server.state("orders").leader, server.state("orders").accepts_loss) == (BROKER, False)


def test_users_are_added_listed_and_deleted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "password"
    file.write_text("canary\n")
    assert run("users", "list").rows == []
    added = run("users", "add", "alice", "--password-file", str(file), "--iterations", "4096")
    assert added.out.split() == ["USER", "MECHANISM", "ITERATIONS", "alice", "SCRAM-SHA-512", "4096"]
    monkeypatch.setattr("sys.stdin", io.StringIO("canary"))
    run("users", "add", "alice", "--password-file", "-", "--mechanism", "scram-sha-256")
    listed = run("users", "list", "-o", "json")
    assert [(row["MECHANISM"], row["ITERATIONS"]) for row in json.loads(listed.out)] == [
        ("SCRAM-SHA-256", 16_384),
        ("SCRAM-SHA-512", 4_096),
    ]
    assert "canary" not in added.out + added.err + listed.out
    run("users", "delete", "alice")
    assert "SCRAM-SHA-512" not in run("users", "list").out


@pytest.mark.parametrize(
    ("words", "text", "reason"),
    [
        (("delete", "bob"), "", "Attempt to delete a user credential that does not exist"),
        (("add", "bob"), "", "a password has 1 to 1024 bytes"),
        (("add", "bob"), "p\u00e4ssword", "printable ASCII"),
        (("add", "bob", "--iterations", "1"), "secret", "Too few iterations"),
        (("add", "bob", "--mechanism", "PLAIN"), "secret", "say SCRAM-SHA-256, SCRAM-SHA-512"),
    ],
)
def test_a_user_that_cannot_be_changed_is_refused_with_the_reason(
    run: Run, words: tuple[str, ...], text: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    refused = run("users", *words, *(("--password-file", "-") if words[0] == "add" else ()))
    assert (refused.code, reason in refused.err) == (1, True), refused.err


def test_a_file_of_settings_holds_for_every_command(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=PLAINTEXT\nclient.id=mine\nssl.truststore.type=PEM\nbootstrap.servers=x:1\n")
    monkeypatch.setenv("TAILRACE_COMMAND_CONFIG", "")  # undone after the test
    for words in (("--command-config", str(file), "users", "list"), ("users", "list", f"--command-config={file}")):
        listed = run(*words)
        assert (listed.code, listed.err) == (0, "not used of the file of settings: ssl.truststore.type\n")
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.password=canary\n")
    refused = run("users", "list")
    assert (refused.code, "sasl.mechanism" in refused.err, "canary" in refused.err) == (1, True, False)
    assert run("users", "list", "--command-config").code == 2
