"""`tailrace transactions`, with a node that has some."""

import json
from collections.abc import Iterator

import confluent_kafka
import pytest

from tailrace.cli.main import main
from tailrace.client.blocking import Admin, NewTopic
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import SinkMember
from tailrace.protocol.records.record import Record
from tailrace.testing import Cluster
from testkit.programs.commands import CommandResult, Run, run_command
from testkit.programs.waiting import wait_until

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node with an open transaction of `pay`, at offset 0 of `orders-1`, and a committed transaction of `ship`."""
    with Cluster() as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name="orders", partitions=2)])
        for name, is_open in (("ship", False), ("pay", True)):
            producer = confluent_kafka.Producer(
                {
                    "bootstrap.servers": cluster.bootstrap_servers,
                    "transactional.id": name,
                    "transaction.timeout.ms": 900_000,  # it stays open for as long as the tests take
                    "log_level": 0,
                }
            )
            producer.init_transactions(PATIENCE_S)
            producer.begin_transaction()
            producer.produce("orders", b"record", partition=int(is_open))
            producer.flush(PATIENCE_S)
            if not is_open:
                producer.commit_transaction(PATIENCE_S)
        yield cluster


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("TAILRACE_BOOTSTRAP", cluster.bootstrap_servers)

    def call(*words: str) -> CommandResult:
        return run_command(("transactions", *words), capsys)

    return call


def test_transactional_ids_are_listed_and_filtered(run: Run) -> None:
    (pay,) = run("list", "--state", "Ongoing").rows
    assert (pay["TransactionalId"], pay["Coordinator"], pay["TransactionState"]) == ("pay", "1", "Ongoing")
    assert {row["TransactionalId"] for row in run("list").rows} == {"pay", "ship"}
    assert [row["TransactionalId"] for row in run("list", "--producer-id", pay["ProducerId"]).rows] == ["pay"]
    assert run("list", "--state", "Ongoing", "--running-longer-than-ms", "3600000").rows == []
    unknown = run("list", "--state", "Sleeping")
    assert unknown.code == 1
    assert "Sleeping" in unknown.err


def test_a_transactional_id_is_described_with_its_partitions(run: Run) -> None:
    described = run("describe", "pay", "-o", "json")
    (pay,) = json.loads(described.out)
    assert (pay["TransactionState"], pay["TopicPartitions"], pay["ProducerEpoch"]) == ("Ongoing", ["orders-1"], 0)
    assert pay["TransactionDurationMs"] >= 0
    (ship,) = run("describe", "ship").rows
    assert ship["TopicPartitions"] == "-"
    missing = run("describe", "nobody")
    assert missing.code == 1
    assert "'nobody'" in missing.err
    assert "tailrace transactions list" in missing.err


def test_a_hanging_transaction_is_aborted_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster() as cluster:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "pay", "log_level": 0}
        )
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("orders", b"record", partition=0)
        producer.flush(PATIENCE_S)
        words = ("orders", "--partition", "0", "--start-offset", "0", "--bootstrap-server", cluster.bootstrap_servers)
        capsys.readouterr()
        codes = []
        for _ in range(2):
            with pytest.raises(SystemExit) as ended:
                main(("transactions", "abort", *words, "-o", "json"))
            codes.append(ended.value.code)
    assert codes == [0, 1]
    assert json.loads(capsys.readouterr().out) == [{"Topic": "orders", "Partition": 0, "StartOffset": 0}]


def test_sinks_are_shown_and_their_members_are_no_flood(cluster: Cluster, run: Run) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        for attempt in range(3):
            member = admin.initialize_sink_member(
                SinkMember("copy", "r1", 1, 0, attempt), transaction_timeout_ms=600_000
            )
            place = TopicPartition("orders", 0)
            admin.write_sink_records(member, place, [Record(0, 1, None, b"x")], base_sequence=0)
        admin.commit_sink("copy", run="r1", batch=0, members=(), origin="/checkpoint")
        listed = run("list")
        batch = "__tailrace_sink/copy/r1/1/*"
        assert {row["TransactionalId"] for row in listed.rows} == {"pay", "ship", batch}
        assert [row["TransactionState"] for row in listed.rows if row["TransactionalId"] == batch] == ["Ongoing"]
        assert "summed up: 3 tasks that write to sinks" in listed.err
        assert batch in {row["TransactionalId"] for row in run("list", "--state", "Ongoing").rows}
        assert batch not in {row["TransactionalId"] for row in run("list", "--state", "Empty").rows}
        everything = run("list", "--sink-members")
        assert len(everything.rows) == 5
        assert "summed up" not in everything.err
        (shown,) = json.loads(run("sinks", "-o", "json").out)
        assert (shown["Sink"], shown["Run"], shown["LastBatch"], shown["OpenMembers"]) == ("copy", "r1", 0, 3)
        assert (shown["Origin"], shown["PastRuns"], shown["EndingMembers"]) == ("/checkpoint", 0, 0)
        assert shown["IdleMs"] >= 0
        (row,) = run("sinks", "copy").rows
        assert row["LastBatch"] == "0"
        missing = run("sinks", "other")
        assert missing.code == 1
        assert "there is no sink 'other'" in missing.err
        admin.commit_sink("copy", run="r1", batch=1, members=())
    # The answer waits for the ends of members that it commits, not for those that it aborts.
    wait_until(lambda: {row["TransactionalId"] for row in run("list").rows} == {"pay", "ship"}, "the members end")
