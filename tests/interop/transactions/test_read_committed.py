"""Our own readers of committed data, of what librdkafka writes in transactions (KIP-98)."""

from collections.abc import Iterator
from typing import Final
from uuid import uuid4

import pytest

from interop.librdkafka import Message, librdkafka
from tailrace.cli.main import main
from tailrace.client.blocking import Admin, Consumer, RangedFetch
from tailrace.client.offsets import LATEST, READ_COMMITTED, READ_UNCOMMITTED
from tailrace.client.reader_settings import Isolation
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

pytestmark = pytest.mark.interop

COMMITTED: Final = "read_committed"
EVERYTHING: Final = "read_uncommitted"
OPEN_FOR_LONG = {"transaction.timeout.ms": 600_000, "batch.num.messages": 10}


class TransactionHistory:
    """A topic of one partition with committed, aborted and open transactions, and the values in the transactions."""

    def __init__(self, cluster: Cluster) -> None:
        self.bootstrap = cluster.bootstrap_servers
        self.partition = TopicPartition(f"transactions-{uuid4()}", 0)
        with Admin(self.bootstrap) as admin:
            admin.create_topics({self.partition.topic: 1})
        self._producers = [
            librdkafka().Producer(self.bootstrap, {**OPEN_FOR_LONG, "transactional.id": str(uuid4())}) for _ in range(2)
        ]
        self.committed: list[bytes] = []
        self.aborted: list[bytes] = []
        for round_ in range(6):
            self.write(round_ % 2, f"round {round_}", is_commit=round_ % 3 != 1)
        self.await_markers()
        self.open = self.write(1, "open", is_commit=None)

    def write(self, producer: int, text: str, *, is_commit: bool | None) -> list[bytes]:
        values = [f"{text} {number}".encode() for number in range(35)]
        messages = [Message(None, value) for value in values]
        self._producers[producer].transact(self.partition.topic, messages, is_commit=is_commit)
        if is_commit is not None:
            (self.committed if is_commit else self.aborted).extend(values)
        return values

    def end(self) -> None:
        """Commit what is open."""
        self._producers[1].end(is_commit=True)
        self.await_markers()

    def await_markers(self) -> None:
        """Wait for the markers, which come after the client has been answered."""
        wait_until(lambda: self.latest(READ_COMMITTED) == self.latest(READ_UNCOMMITTED), "the markers are written")

    def latest(self, isolation_level: int) -> int:
        with Admin(self.bootstrap) as admin:
            return admin.list_offsets({self.partition: LATEST}, isolation_level=isolation_level)[self.partition].offset


@pytest.fixture
def history(tailrace_cluster: Cluster) -> TransactionHistory:
    return TransactionHistory(tailrace_cluster)


@pytest.fixture
def consumer(history: TransactionHistory) -> Iterator[Consumer]:
    with Consumer(history.bootstrap, isolation=COMMITTED, auto_offset_reset="earliest") as consumer:
        consumer.assign([history.partition])
        yield consumer


def test_a_consumer_sees_what_is_committed_and_waits_for_what_is_open(
    history: TransactionHistory, consumer: Consumer
) -> None:
    seen: list[bytes | None] = []

    def has_seen(count: int) -> bool:
        seen.extend(record.value for record in consumer.poll(0.2))
        return len(seen) >= count

    wait_until(lambda: has_seen(len(history.committed)), "committed records come")
    assert seen == history.committed
    assert consumer.poll(0.3) == []
    history.end()
    wait_until(lambda: has_seen(len(history.committed) + len(history.open)), "the transaction ends")
    assert seen == [*history.committed, *history.open]


@pytest.mark.parametrize("isolation", [COMMITTED, EVERYTHING])
def test_a_ranged_fetch_gives_the_same_as_bytes_and_as_arrow(history: TransactionHistory, isolation: Isolation) -> None:
    history.end()
    end = history.latest(READ_COMMITTED)
    with RangedFetch(history.bootstrap, isolation=isolation) as fetch:
        values: list[bytes] = []
        for start in range(0, end, 50):
            for batch in fetch.arrow(history.partition, start, min(start + 50, end), columns=["value"]):
                values += batch.column("value").to_pylist()
    wanted = [*history.committed, *history.open]
    assert sorted(values) == sorted(wanted if isolation == COMMITTED else [*wanted, *history.aborted])
    if isolation == COMMITTED:
        assert values == wanted


def test_the_end_for_readers_of_committed_data_is_where_the_open_transaction_begins(
    history: TransactionHistory,
) -> None:
    assert history.latest(READ_COMMITTED) == history.latest(READ_UNCOMMITTED) - len(history.open)
    before = history.latest(READ_UNCOMMITTED)
    history.end()
    assert history.latest(READ_COMMITTED) == before + 1, "the marker has an offset, too"


def test_the_command_line_leaves_out_what_is_not_committed(
    history: TransactionHistory, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    count = str(len(history.committed))
    words = ("consume", history.partition.topic, "--bootstrap-server", history.bootstrap, "--from-beginning")
    with pytest.raises(SystemExit) as ended:
        main((*words, "--max-messages", count, "--isolation", COMMITTED))
    assert ended.value.code == 0
    assert capsysbinary.readouterr().out.splitlines() == history.committed
