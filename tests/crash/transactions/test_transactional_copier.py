"""A worker that reads, writes and commits its progress in transactions copies each record once, whatever dies when.

The worker is a process of Tailrace's own clients, which dies at a request or at an answer, or goes on while the nodes
of its coordinators die. confluent-kafka and our own consumer read the copies at read_committed.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import confluent_kafka
import pytest

from crash.program import IMPORT_PATH
from crash.transactions.copier import GROUP, OF_ONE_TRANSACTION, SOURCE, TARGET
from crash.transactions.writer import REPLICATED
from tailrace.client.admin.cluster import UpgradeType
from tailrace.client.blocking import Admin, Consumer, NewTopic, Producer
from tailrace.client.offsets import LATEST, READ_COMMITTED, READ_UNCOMMITTED
from tailrace.testing import Cluster

SECONDS = 60.0
ROUNDS = int(os.environ.get("KILLS", "3"))
RECORDS = max(1_000, 40 * ROUNDS)
"""So many that some transactions lie between two kills."""
VALUES = [b"%d" % number for number in range(RECORDS)]
OF_ALL = ("Produce 2", "TxnOffsetCommit 2", "EndTxn 2")
OF_OLDER = ("AddPartitionsToTxn 2", "AddOffsetsToTxn 2")
IMPATIENT = {
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}

pytestmark = pytest.mark.crash


def _copier(servers: str, moment: str = "", *, name: str = "copier") -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "crash.transactions.copier", servers, str(RECORDS), name, moment]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": IMPORT_PATH}, stderr=subprocess.PIPE)


def _ended(process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    try:
        _, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    return process.returncode, errors.decode(errors="replace")[-4_000:]


def _fill(servers: str, replication_factor: int) -> None:
    with Admin(servers) as admin, Producer(servers) as producer:
        topics = [
            NewTopic(name=name, partitions=1, replication_factor=replication_factor)
            for name in (SOURCE.topic, TARGET.topic)
        ]
        admin.create_topics(topics)
        for value in VALUES:
            producer.send(SOURCE.topic, value, partition=SOURCE.partition)


def _stable_end(servers: str) -> int:
    """The end of the copies, once no transaction is open there."""
    ends = [0, 1]
    deadline = time.monotonic() + SECONDS
    with Admin(servers) as admin:
        while ends[0] != ends[1]:
            assert time.monotonic() < deadline, "a transaction stays open"
            levels = (READ_COMMITTED, READ_UNCOMMITTED)
            ends = [admin.list_offsets({TARGET: LATEST}, isolation_level=level)[TARGET].offset for level in levels]
    return ends[0]


def _read_by_us(servers: str, end: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    with Consumer(servers, isolation="read_committed") as consumer:
        consumer.assign([TARGET])
        consumer.seek(TARGET, 0)
        deadline = time.monotonic() + SECONDS
        while (consumer.position(TARGET) or 0) < end:
            assert time.monotonic() < deadline
            values += [record.value for record in consumer.poll(0.5)]
    return values


def _read_by_librdkafka(servers: str, end: int) -> list[bytes | None]:
    settings = {"bootstrap.servers": servers, "group.id": "reader", "isolation.level": "read_committed", "log_level": 0}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    values: list[bytes | None] = []
    try:
        place = confluent_kafka.TopicPartition(TARGET.topic, TARGET.partition, 0)
        consumer.assign([place])
        deadline = time.monotonic() + SECONDS
        while consumer.position([place])[0].offset < end:
            assert time.monotonic() < deadline
            values += [each.value() for each in consumer.consume(1_000, 0.2) if each.error() is None]
    finally:
        consumer.close()
    return values


def _check_copies(servers: str) -> None:
    end = _stable_end(servers)
    assert _read_by_us(servers, end) == VALUES, "each record once, and in order"
    assert _read_by_librdkafka(servers, end) == VALUES
    with Admin(servers) as admin:
        assert admin.group_offsets(GROUP)[SOURCE].offset == RECORDS


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """So many nodes with this transaction.version."""
    brokers, version = request.param
    with Cluster(
        brokers=brokers, directory=tmp_path, config=IMPATIENT | (REPLICATED if brokers > 1 else {})
    ) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            if version < 2:
                admin.update_features({"transaction.version": version}, upgrade_type=UpgradeType.SAFE_DOWNGRADE)
            assert admin.describe_features().finalized.get("transaction.version", 0) == version
        yield cluster


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("cluster", "requests"), [((1, 1), (*OF_ALL, *OF_OLDER)), ((1, 2), OF_ALL)], indirect=["cluster"]
)
def test_a_worker_dies_before_and_behind_each_request(cluster: Cluster, requests: Sequence[str]) -> None:
    """Every process commits one transaction and dies in its second, except the processes that die at their begin."""
    servers = cluster.bootstrap_servers
    _fill(servers, 1)
    for request in ("InitProducerId 1", *requests):
        for moment in (f"asked {request}", f"answered {request}"):
            code, errors = _ended(_copier(servers, moment))
            assert code == -signal.SIGKILL, f"it did not die at {moment}: {errors}"
    code, errors = _ended(_copier(servers))
    assert code == 0, errors
    _check_copies(servers)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cluster", [(3, 1), (3, 2)], indirect=True)
def test_a_worker_goes_on_while_its_coordinators_die(cluster: Cluster) -> None:
    """The node that coordinates its transactions dies each time; the group's is often the same."""
    servers = cluster.bootstrap_servers
    _fill(servers, 3)
    copier = _copier(servers)
    try:
        with Admin(servers) as admin:
            for number in range(1, ROUNDS + 1):
                _await_progress(admin, number * RECORDS // (ROUNDS + 2), copier)
                victim = admin.describe_transaction("copier").coordinator_id
                cluster.kill(victim)
                cluster.start(victim)
    finally:
        code, errors = _ended(copier)
    assert code == 0, errors
    _check_copies(servers)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cluster", [(1, 1), (1, 2)], indirect=True)
def test_a_worker_that_was_stopped_commits_nothing_of_another_ones_partition(cluster: Cluster) -> None:
    """A single worker at a time has the partition. It stops beyond its session, in any step, and goes on later."""
    servers = cluster.bootstrap_servers
    _fill(servers, 1)
    copiers = [_copier(servers, name=name) for name in ("one", "two")]
    ended: list[tuple[int, str]] = []
    try:
        with Admin(servers) as admin:
            for number in (1, 2):
                _await_progress(admin, number * RECORDS // 5, *copiers)
                stopped = copiers[_active(admin)]
                stopped.send_signal(signal.SIGSTOP)
                _await_progress(admin, number * RECORDS // 5 + 2 * OF_ONE_TRANSACTION, *copiers)
                stopped.send_signal(signal.SIGCONT)
    finally:
        for copier in copiers:
            copier.send_signal(signal.SIGCONT)
            ended.append(_ended(copier))
    assert [code for code, _ in ended] == [0, 0], ended
    _check_copies(servers)


def _active(admin: Admin) -> int:
    """The worker that has the partition now."""
    deadline = time.monotonic() + SECONDS
    while True:
        (group,) = admin.describe_groups([GROUP])
        owners = [member.group_instance_id for member in group.members if SOURCE in member.assignment]
        if owners:
            return ("one", "two").index(owners[0] or "")
        assert time.monotonic() < deadline, "the group gives the partition to neither"


def _await_progress(admin: Admin, offset: int, *copiers: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        committed = admin.group_offsets(GROUP).get(SOURCE)
        if committed is not None and committed.offset >= offset:
            return
        assert all(copier.poll() is None for copier in copiers), "a copier has ended"
        assert time.monotonic() < deadline, f"no progress beyond {committed}"
