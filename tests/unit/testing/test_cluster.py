"""The test kit itself: nodes start, die and restart, and leave nothing behind."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tailrace.client.blocking import Admin, Producer, RangedFetch
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.testing import Cluster, ClusterError


@pytest.fixture(autouse=True)
def _in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users start nodes: with another environment than before they are no forks (`node_starter`)."""
    monkeypatch.setenv("NODES", "of test_cluster.py")


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.crash
def test_an_idempotent_producer_loses_and_doubles_nothing_when_its_node_is_killed(tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(3_000)]
    with Cluster(directory=tmp_path) as cluster:
        process_id, address = cluster.process_id(), cluster.bootstrap_servers
        with Admin(address) as admin:
            admin.create_topics({"survives": 1})
        with Producer(address, linger_ms=0, batch_size=500) as producer:
            written = []
            for number, value in enumerate(values):
                written.append(producer.send("survives", value))
                if number % 1_000 == 500:
                    written[-100].result(30)
                    cluster.kill()
                    cluster.restart()
            assert [future.result(60).offset for future in written] == list(range(len(values)))
        assert cluster.bootstrap_servers == address
        assert cluster.process_id() != process_id
        with RangedFetch(address) as fetch:
            read = [
                record.value
                for stretch in fetch.fetch_range(TopicPartition("survives", 0), 0, len(values))
                for buffer in stretch
                for position, _ in iter_batches(buffer)
                for record in read_records(buffer, position)
            ]
        assert read == values
        last = cluster.process_id()
    assert not _is_alive(last)


def test_a_clean_stop_ends_the_process_and_the_data_directory_is_removed() -> None:
    with Cluster() as cluster:
        process_id, directory = cluster.process_id(), cluster.data_dir()
        assert directory.is_dir()
        cluster.stop()
        assert not cluster.is_running()
    assert not _is_alive(process_id)
    assert not directory.exists()


def test_a_start_waits_for_those_that_were_started_before_and_are_not_ready_yet() -> None:
    cluster = Cluster()
    try:
        cluster.prepare()
        cluster.start(wait=False)
        cluster.start()
        host, port = cluster.address().split(":")
        socket.create_connection((host, int(port))).close()
    finally:
        cluster.close()


def test_a_node_that_survives_its_kill_is_reported() -> None:
    """A process that waits for its disk survives SIGKILL for a while, and may still write."""
    with Cluster() as cluster:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tailrace.testing.node_process._GONE_S", 0.01)
            patch.setattr("tailrace.testing.node_process.os.killpg", lambda *_: None)
            with pytest.raises(ClusterError, match="alive"):
                cluster.kill()
        assert cluster.is_running()


def test_a_node_that_does_not_start_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ClusterError, match="before it was ready") as caught:
            Cluster(config={"metrics.listener": address}).start()
    assert f"cannot listen on {address}" in str(caught.value)


def test_the_settings_of_another_node_in_the_environment_are_not_the_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container of tests may be that of a node: with the variables of its settings, and of a Service."""
    for name, text in (
        ("NODE_ID", "7"),
        ("LISTENERS", "127.0.0.1:9092"),
        ("PORT", "tcp://10.0.0.1:9092"),
        ("NODE_IDD", "1"),
    ):
        monkeypatch.setenv(f"TAILRACE_{name}", text)
    with Cluster(brokers=2) as cluster, Admin(cluster.bootstrap_servers) as admin:
        assert {broker.node_id for broker in admin.describe_cluster().brokers} == {1, 2}


@pytest.mark.parametrize(
    ("brokers", "config", "why"),
    [(1, {"no.such.setting": "1"}, "no.such.setting"), (0, {}, "0 brokers"), (2, {"node.id": "7"}, "node.id differs")],
)
def test_an_impossible_cluster_is_refused(brokers: int, config: dict[str, str], why: str) -> None:
    with pytest.raises(ClusterError, match=why):
        Cluster(brokers, config=config).start()


def test_a_cluster_starts_again_on_its_address_and_data(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics({"survives": 1})
        address = cluster.bootstrap_servers
        cluster.stop()
    with Cluster(directory=tmp_path) as cluster, Admin(cluster.bootstrap_servers) as admin:
        assert cluster.bootstrap_servers == address
        assert "survives" in {topic.name for topic in admin.list_topics()}


ORPHAN = """
import sys
from tailrace.testing import Cluster

cluster = Cluster()
cluster.start()
print(cluster.process_id(), flush=True)
sys.stdin.read()
"""


def test_a_node_ends_with_the_program_that_started_it_even_by_kill_9() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        node = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{node}").exists():
        assert time.monotonic() < deadline, f"node {node} lives on"
        time.sleep(0.05)


def modules_after(script: str) -> set[str]:
    """The modules that this program has imported at its end."""
    program = f"import sys\nfrom tailrace.testing import Cluster\n{script}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.split())


def test_a_cluster_starts_without_the_imports_of_the_clients() -> None:
    """A test with another client does not wait for them."""
    loaded = modules_after("Cluster()")
    assert "tailrace.testing.cluster" in loaded
    assert not [name for name in loaded if name.startswith("tailrace.client")]


def test_settings_of_the_kit_alone_are_checked_by_the_node_alone() -> None:
    """The settings of a node come with the modules of a node, which a test does not need."""
    start = "with Cluster({}) as cluster: cluster.kill()".format
    of_nodes = {"tailrace.node.settings.config", "tailrace.raft", "tailrace.server.fetch", "tailrace.storage.log"}
    assert modules_after(start("")) & of_nodes == set()
    assert modules_after(start("config={'num.partitions': 2}")) >= of_nodes


@pytest.mark.parametrize("has_directory", [False, True])
def test_a_misspelt_setting_is_named_before_anything_stays(tmp_path: Path, has_directory: bool) -> None:
    cluster = Cluster(config={"num.partition": "3"}, directory=tmp_path if has_directory else None)
    with pytest.raises(ClusterError) as caught:
        cluster.start()
    assert str(caught.value) == "INVALID_CONFIG: unknown setting 'num.partition'; did you mean num.partitions?"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ClusterError, match="it was not started, or it was closed"):
        cluster.process_id()
