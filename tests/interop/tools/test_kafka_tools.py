"""Apache Kafka's command-line tools administer a node: what the tools ask for happens, and their tables show so."""

import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from py4j import java_gateway
from pyspark.errors.exceptions.captured import install_exception_handler

from interop.java_client import PATIENTLY
from interop.kafka_tools import Dump, run
from interop.librdkafka import ConfluentConsumerProtocol
from tailrace.client.blocking import Admin, Consumer, Producer
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.registry import CLIENT_APIS, OWN_APIS
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("kafka_tools")]

Tool = Callable[..., Dump]


@pytest.fixture
def tool(tailrace_cluster: Cluster) -> Tool:
    """Runs a tool against the node."""

    def on_node(script: str, *options: str, stdin: str = "") -> Dump:
        return run(script, "--bootstrap-server", tailrace_cluster.bootstrap_servers, *options, stdin=stdin)

    return on_node


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> str:
    """Two partitions with ten and five records."""
    name = f"tools-{uuid4()}"
    with Admin(tailrace_cluster.bootstrap_servers) as admin, Producer(tailrace_cluster.bootstrap_servers) as producer:
        admin.create_topics({name: 2})
        for number in range(15):
            producer.send(name, b"value", partition=int(number >= 10))
        producer.flush()
    return name


def table(text: str) -> list[dict[str, str]]:
    """The rows of a table under its first line; a cell has no spaces."""
    head, *rows = [line.split() for line in text.splitlines() if line.strip()]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_a_tool_runs_beside_a_spark_session(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark converts the exceptions of every Java virtual machine that this process calls."""
    monkeypatch.setattr(java_gateway, "get_return_value", java_gateway.get_return_value)  # as it is, at the end
    install_exception_handler()
    assert "TransactionalId" in tool("kafka-transactions", "list").out


def test_topics_are_created_listed_described_altered_and_deleted(tool: Tool) -> None:
    name = f"tools-{uuid4()}"
    settings = ("--config", "retention.ms=5000", "--config", "cleanup.policy=compact")
    made = tool("kafka-topics", "--create", "--topic", name, "--partitions", "2", *settings)
    assert made.out == f"Created topic {name}.\n"
    assert name in tool("kafka-topics", "--list").out.splitlines()
    tool("kafka-topics", "--alter", "--topic", name, "--partitions", "3")
    head, *partitions = tool("kafka-topics", "--describe", "--topic", name).out.splitlines()
    assert re.fullmatch(
        rf"Topic: {name}\tTopicId: [\w-]{{22}}\tPartitionCount: 3\tReplicationFactor: 1\tConfigs: (.*)", head
    )
    # A new cluster states min.insync.replicas for all brokers, so the tool does not take it for a default.
    stated = {"retention.ms=5000", "cleanup.policy=compact", "min.insync.replicas=1"}
    assert set(head.rpartition("Configs: ")[2].split(",")) == stated
    assert partitions == [
        f"\tTopic: {name}\tPartition: {index}\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: "
        for index in range(3)
    ]
    assert name not in tool("kafka-topics", "--describe", "--unavailable-partitions").out
    tool("kafka-topics", "--delete", "--topic", name)
    assert name not in tool("kafka-topics", "--list").out.splitlines()


@pytest.mark.parametrize(
    ("options", "why"),
    [(("no/name",), "a topic name consists of"), (("two-replicas", "--replication-factor", "2"), "replication factor")],
    ids=["name", "replicas"],
)
def test_a_refused_topic_is_reported_with_the_reason(tool: Tool, options: tuple[str, ...], why: str) -> None:
    with pytest.raises(AssertionError, match=f"(?i)Error while executing topic command : .*{why}"):
        tool("kafka-topics", "--create", "--topic", *options)


def test_a_group_is_shown_and_its_offsets_are_reset_and_deleted(
    tailrace_cluster: Cluster, tool: Tool, topic: str
) -> None:
    group, groups = f"group-of-{topic}", "kafka-consumer-groups"
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.commit_offsets(group, {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 5})

    def offsets() -> dict[int, int]:
        with Admin(tailrace_cluster.bootstrap_servers) as admin:
            return {name.partition: told.offset for name, told in admin.group_offsets(group).items()}

    assert {"GROUP": group, "STATE": "Empty"} in table(tool(groups, "--list", "--state").out)
    described = table(tool(groups, "--describe", "--group", group).out)
    shown = {row["PARTITION"]: (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) for row in described}
    assert shown == {"0": ("4", "10", "6"), "1": ("5", "5", "0")}
    state = tool(groups, "--describe", "--group", group, "--state").out.splitlines()[-1].split()
    assert state == [group, tailrace_cluster.bootstrap_servers, "(1)", "-", "Empty", "0"]

    chosen = ("--group", group, "--reset-offsets", "--topic")
    (planned,) = table(tool(groups, *chosen, f"{topic}:0", "--shift-by", "2", "--dry-run").out)
    assert (planned["PARTITION"], planned["NEW-OFFSET"], offsets()) == ("0", "6", {0: 4, 1: 5})
    tool(groups, *chosen, topic, "--to-earliest", "--execute")
    assert offsets() == {0: 0, 1: 0}
    tool(groups, *chosen, f"{topic}:0", "--to-datetime", "2999-01-01T00:00:00.000", "--execute")
    assert offsets() == {0: 10, 1: 0}

    told = tool(groups, "--group", group, "--delete-offsets", "--topic", f"{topic}:1").out
    assert [topic, "1", "Successful"] in [line.split() for line in told.splitlines()]
    assert offsets() == {0: 10}
    assert "was successful" in tool(groups, "--delete", "--group", group).out
    assert offsets() == {}


def test_members_of_both_kinds_of_groups_are_shown(tailrace_cluster: Cluster, tool: Tool, topic: str) -> None:
    bootstrap = tailrace_cluster.bootstrap_servers
    with (
        closing(ConfluentConsumerProtocol().join(bootstrap, topic, f"modern-{topic}")) as modern,
        Consumer(bootstrap, topics=[topic], group=f"classic-{topic}", group_protocol="classic") as classic,
    ):
        wait_until(lambda: bool(modern.poll()) and modern.assignment() == {0, 1}, "the member has both partitions")
        wait_until(lambda: bool(classic.poll(0.1) or classic.assignment()), "the classic group's member has partitions")
        members = {}
        for kind in ("modern", "classic"):
            told = tool("kafka-consumer-groups", "--describe", "--group", f"{kind}-{topic}", "--members", "--verbose")
            members[kind] = told.out
        kinds = {row["GROUP"]: row["TYPE"] for row in table(tool("kafka-consumer-groups", "--list", "--type").out)}
    assert (kinds[f"modern-{topic}"], kinds[f"classic-{topic}"]) == ("Consumer", "Classic")
    for kind, shown in members.items():
        assert f"{kind}-{topic}" in shown
        assert f"{topic}:0,1" in shown, kind


def test_offsets_are_found_by_place_and_by_time(tailrace_cluster: Cluster, tool: Tool, topic: str) -> None:
    def offsets(time: str) -> list[str]:
        return tool("kafka-get-offsets", "--topic", topic, "--time", time).out.splitlines()

    assert offsets("latest") == [f"{topic}:0:10", f"{topic}:1:5"]
    assert offsets("earliest") == [f"{topic}:0:0", f"{topic}:1:0"]
    assert offsets("1") == [f"{topic}:0:0", f"{topic}:1:0"]
    assert {line.rpartition(":")[0] for line in offsets("max-timestamp")} == {f"{topic}:0", f"{topic}:1"}


def test_records_are_deleted_and_the_disk_is_described(tool: Tool, topic: str, tmp_path: Path) -> None:
    wanted = tmp_path / "offsets.json"
    wanted.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 7}]}))
    done = tool("kafka-delete-records", "--offset-json-file", str(wanted))
    assert f"partition: {topic}-0\tlow_watermark: 7" in done.out
    assert tool("kafka-get-offsets", "--topic-partitions", f"{topic}:0", "--time", "earliest").out == f"{topic}:0:7\n"
    told = json.loads(tool("kafka-log-dirs", "--describe", "--topic-list", topic).out.splitlines()[-1])
    ((directory,),) = [broker["logDirs"] for broker in told["brokers"]]
    sizes = {described["partition"]: described["size"] for described in directory["partitions"]}
    assert directory["error"] is None
    assert sizes.keys() == {f"{topic}-0", f"{topic}-1"}
    assert min(sizes.values()) > 0


def test_every_api_that_is_announced_and_kafkas_can_be_used_by_its_client(tool: Tool) -> None:
    told = tool("kafka-broker-api-versions").out
    usable = {int(key): int(version) for key, version in re.findall(r"\((\d+)\): .*\[usable: (\d+)\]", told)}
    newer = {80: 0, 27: 1}  # AddRaftVoter 1 (KIP-1186) and WriteTxnMarkers 2 (KIP-1228) came after this client
    of_kafka = {key: api.max_version for key, api in CLIENT_APIS.items() if key not in OWN_APIS}
    assert usable == of_kafka | newer
    assert {int(key) for key in re.findall(r"UNKNOWN\((\d+)\)", told)} == OWN_APIS.keys()


def test_the_cluster_its_quorum_and_its_groups_are_described(tailrace_cluster: Cluster, tool: Tool, topic: str) -> None:
    bootstrap = tailrace_cluster.bootstrap_servers
    with Admin(bootstrap) as admin:
        admin.commit_offsets(f"group-of-{topic}", {TopicPartition(topic, 0): 4})
    cluster_id = run("kafka-cluster", "cluster-id", "--bootstrap-server", bootstrap).out.split()[-1]
    status = tool("kafka-metadata-quorum", "describe", "--status").out
    told = {name: value.strip() for name, _, value in (line.partition(":") for line in status.splitlines())}
    assert (told["ClusterId"], told["LeaderId"], told["MaxFollowerLag"]) == (cluster_id, "1", "0")
    (voter,) = json.loads(told["CurrentVoters"])
    assert (voter["id"], voter["endpoints"]) == (1, [f"PLAINTEXT://{bootstrap}"])
    described = tool("kafka-features", "describe").out
    (replica,) = table(tool("kafka-metadata-quorum", "describe", "--replication").out)
    assert (replica["NodeId"], replica["DirectoryId"], replica["Lag"]) == ("1", voter["directoryId"], "0")
    features = re.findall(r"Feature: (\S+)\t.*FinalizedVersionLevel: (\S+)\tEpoch: (\d+)", described)
    levels = {name: level for name, level, _ in features}
    epochs = {int(epoch) for _, _, epoch in features}
    assert (levels["metadata.version"], len(epochs)) == ("4.1-IV1", 1)
    assert 0 < epochs.pop() < int(replica["LogEndOffset"])
    rows = [line.split() for line in tool("kafka-groups", "--list").out.splitlines()]
    assert [f"group-of-{topic}", "Classic"] in rows  # and no protocol: it has had no members


def test_leaders_are_elected_and_replicas_moved_as_far_as_one_broker_goes(
    tool: Tool, topic: str, tmp_path: Path
) -> None:
    preferred = ("--election-type", "preferred")
    elected = tool("kafka-leader-election", *preferred, "--topic", topic, "--partition", "0").out
    assert elected == f"Valid replica already elected for partitions {topic}-0\n"
    assert tool("kafka-leader-election", *preferred, "--all-topic-partitions").out == ""
    wanted = tmp_path / "reassignment.json"

    def reassign(action: str, broker_id: int) -> str:
        move = {"topic": topic, "partition": 0, "replicas": [broker_id], "log_dirs": ["any"]}
        wanted.write_text(json.dumps({"version": 1, "partitions": [move]}))
        return tool("kafka-reassign-partitions", action, "--reassignment-json-file", str(wanted)).out

    assert f"Successfully started partition reassignment for {topic}-0" in reassign("--execute", 1)
    assert f"Reassignment of partition {topic}-0 is completed." in reassign("--verify", 1)
    with pytest.raises(AssertionError, match="(?i)unknown broker|not registered"):
        reassign("--execute", 9)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_records_of_the_console_producer_reach_the_console_consumer(
    tailrace_cluster: Cluster, tool: Tool, protocol: str
) -> None:
    name = f"console-{uuid4()}"
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.create_topics({name: 1})
    lines = "trace:42,empty:\tkey\tvalue\nNULL\tNULL\tno key\nNULL\tgone\tNULL\nNULL\tключ\t値 🙂\n"
    parsing = ("parse.key=true", "parse.headers=true", "null.marker=NULL")
    given = [word for option in parsing for word in ("--property", option)]
    tool("kafka-console-producer", "--topic", name, "--compression-codec", "zstd", *PATIENTLY, *given, stdin=lines)
    printing = ("print.headers=true", "print.key=true", "print.offset=true", "null.literal=NULL")
    shown = [word for option in printing for word in ("--property", option)]
    group = ("--group", f"group-{name}", "--consumer-property", f"group.protocol={protocol}")
    read = tool("kafka-console-consumer", "--topic", name, "--from-beginning", "--max-messages", "4", *shown, *group)
    assert read.out.splitlines() == [
        "Offset:0\ttrace:42,empty:\tkey\tvalue",
        "Offset:1\tNO_HEADERS\tNULL\tno key",
        "Offset:2\tNO_HEADERS\tgone\tNULL",
        "Offset:3\tNO_HEADERS\tключ\t値 🙂",
    ]
    (progress,) = table(tool("kafka-consumer-groups", "--describe", "--group", f"group-{name}").out)
    assert (progress["CURRENT-OFFSET"], progress["LAG"]) == ("4", "0")


def test_the_performance_tools_count_what_they_send_and_read(tailrace_cluster: Cluster, tool: Tool) -> None:
    """That they run and that nothing is missing; how fast is for `make bench`."""
    name, count = f"performance-{uuid4()}", "20000"
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.create_topics({name: 3})
    servers = f"bootstrap.servers={tailrace_cluster.bootstrap_servers}"
    volume = ("--num-records", count, "--record-size", "100", "--throughput", "-1")
    sent = run(
        "kafka-producer-perf-test", "--topic", name, *volume, "--producer-props", servers, "compression.type=lz4"
    )
    assert f"{count} records sent, " in sent.out.splitlines()[-1]
    patiently = ("--timeout", "60000")
    head, row = tool("kafka-consumer-perf-test", "--topic", name, "--messages", count, *patiently).out.splitlines()
    read = dict(zip(head.split(", "), row.split(", "), strict=True))
    assert read["data.consumed.in.nMsg"] == count


def test_the_verifiable_producer_receives_an_answer_for_each_record(
    tailrace_cluster: Cluster, tool: Tool, topic: str
) -> None:
    sent = tool("kafka-verifiable-producer", "--topic", topic, "--max-messages", "50", "--acks", "-1")
    events = [json.loads(line) for line in sent.out.splitlines() if line.startswith("{")]
    acknowledged = {
        (event["partition"], event["offset"]) for event in events if event["name"] == "producer_send_success"
    }
    (summary,) = [event for event in events if event["name"] == "tool_data"]
    assert (summary["sent"], summary["acked"], len(acknowledged)) == (50, 50, 50)


def test_a_view_is_read_by_the_consumer_and_its_lag_is_in_the_table_of_groups(tool: Tool, topic: str) -> None:
    view, group = f"{topic}.shared-4", f"group-of-{topic}"
    read = tool("kafka-console-consumer", "--topic", view, "--group", group, "--from-beginning", "--max-messages", "15")
    assert read.out.splitlines() == ["value"] * 15
    rows = table(tool("kafka-consumer-groups", "--describe", "--group", group).out)
    assert {row["TOPIC"] for row in rows} == {view}
    assert {row["PARTITION"]: row["LAG"] for row in rows} == {str(number): "0" for number in range(8)}
    assert view not in tool("kafka-topics", "--list").out.split()
    with pytest.raises(AssertionError, match="view of"):
        tool("kafka-topics", "--create", "--topic", view)
