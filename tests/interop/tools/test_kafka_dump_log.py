"""Apache Kafka's own log dump reads what a node has written, finds nothing wrong, and prints what ours prints.

Run as a program, this writes tests/golden/dump_log anew with Kafka's tool.
"""

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop.clients import CODECS
from interop.kafka_tools import dump_log_segments
from interop.librdkafka import Confluent, Message, librdkafka
from tailrace.cli.main import main
from tailrace.client.blocking import Admin, Consumer, NewTopic
from tailrace.model.key_ranges import KeyRange
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import SinkMember
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.record import Record
from tailrace.storage import Log, OsFiles
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until
from testkit.records.batches import stored_batch
from testkit.records.key_ends import end_by_index

GOLDEN = Path(__file__).parents[2] / "golden"
KINDS = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("kafka_tools")]


def golden_dump(path: Path) -> tuple[list[str], list[str], str]:
    """A golden text: its first line has the options and the files, the rest is what Kafka's tool prints of them."""
    head, _, text = path.read_text(encoding="utf-8").partition("\n")
    words = head.removeprefix("$ ").split()
    return [w for w in words if w.startswith("--")], [w for w in words if not w.startswith("--")], text


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data of a node that has seen clients, groups, transactions, a sink, deletions, kill -9 and a stop."""
    with Cluster(directory=tmp_path_factory.mktemp("node")) as cluster:
        _create_topics(cluster)
        for round_number in range(3):
            _produce(cluster, random.Random(round_number))
            _commit(cluster, f"group-{round_number}")
            _transact(cluster, random.Random(round_number))
            _write_to_sink(cluster, round_number)
            if round_number < 2:
                cluster.kill() if round_number else cluster.stop()
                cluster.restart()
        with Admin(cluster.bootstrap_servers) as admin:
            admin.delete_topics(["gone"])
            admin.delete_groups(["group-0"])
        cluster.stop()
        yield cluster.data_dir()


def _create_topics(cluster: Cluster) -> None:
    small = {"segment.bytes": "20000", "index.interval.bytes": "300"}
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics(
            [
                NewTopic(name="small", partitions=2, configs=small),
                NewTopic(
                    name="full-index", partitions=1, configs={"segment.index.bytes": "64", "index.interval.bytes": "1"}
                ),
                NewTopic(name="stamped", partitions=1, configs=small | {"message.timestamp.type": "LogAppendTime"}),
                NewTopic(name="gone", partitions=2),
            ]
        )


def _produce(cluster: Cluster, chance: random.Random) -> None:
    for codec in CODECS:
        settings = {
            "compression.type": codec,
            "enable.idempotence": chance.random() < 0.7,
            "batch.num.messages": chance.choice((1, 20)),
        }
        producer = librdkafka().Producer(cluster.bootstrap_servers, settings)
        for first in range(0, 150, 30):
            for topic in ("small", "full-index", "stamped"):
                numbers = [number for number in range(first, first + 30) if chance.random() < 1 / 3]
                times = [chance.choice((0, 1_700_000_000_000 - chance.randrange(10**6))) for _ in numbers]
                producer.write(topic, [_message(number, chance) for number in numbers], times)


def _transact(cluster: Cluster, chance: random.Random) -> None:
    producer = librdkafka().Producer(cluster.bootstrap_servers, {"transactional.id": "dumped"})
    for _ in range(12):
        messages = [_message(number, chance) for number in range(chance.randrange(1, 20))]
        producer.transact("small", messages, is_commit=chance.random() < 0.5)


def _write_to_sink(cluster: Cluster, batch: int) -> None:
    """A batch of a run of its own, with an attempt that is not in it; an attempt of the next batch stays open."""
    with Admin(cluster.bootstrap_servers) as admin:
        members = [SinkMember("copy", f"r{batch}", batch, 0, attempt) for attempt in (0, 1)]
        members.append(SinkMember("copy", f"r{batch}", batch + 1, 0, 0))
        written = [admin.initialize_sink_member(member, transaction_timeout_ms=600_000) for member in members]
        for member in written:
            admin.write_sink_records(member, TopicPartition("small", 0), [Record(0, 1, None, b"x")], base_sequence=0)
        admin.commit_sink("copy", run=f"r{batch}", batch=batch, members=written[:1], origin="/checkpoint")


def _message(number: int, chance: random.Random) -> Message:
    return Message(
        key=None if number % 5 == 0 else f"key {number}".encode(),
        value=None if number % 7 == 0 else f"значение {number} ".encode() * chance.randrange(20),
        headers=(("trace", b"\0\xff"), ("null", None)) if number % 4 == 0 else (),
    )


def _commit(cluster: Cluster, group: str) -> None:
    with Consumer(cluster.bootstrap_servers, group=group, topics=["small"], auto_offset_reset="earliest") as consumer:
        wait_until(lambda: bool(consumer.poll(0.5)), "records come")
        consumer.commit()
    member = Confluent().join(cluster.bootstrap_servers, "small", f"{group}-of-librdkafka")
    wait_until(lambda: bool(member.poll()), "records come")
    member.close()


def files_of(directory: Path, pattern: str, *kinds: str) -> list[str]:
    found = sorted(path for path in directory.glob(pattern) if path.suffix in kinds)
    assert found, f"{pattern} {kinds}"
    return [str(path.relative_to(directory)) for path in found]


@pytest.fixture
def ours(directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The output of `tailrace dump-log` for these files, without a fault."""
    monkeypatch.chdir(directory)

    def dump(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(("dump-log", *words))
        out, err = capsys.readouterr()
        assert (ended.value.code, err) == (0, "")
        return out

    return dump


_OURS = r',"(derivedCount|derivedCrc|isUnclean|lastProducerEpoch)":(\d+|true)|,"sink":\{[^}]*\}'
DUMPS = {
    "all kinds of files": ("*/*", KINDS, ()),
    "records": ("[!_]*/*", (".log",), ("--print-data-log",)),
    "records without content": ("*/*", (".log",), ("--deep-iteration",)),
    "groups": ("__consumer_offsets-*/*", (".log",), ("--offsets-decoder",)),
    "transactions": ("__transaction_state-*/*", (".log",), ("--transaction-log-decoder",)),
    "metadata": ("__cluster_metadata-0/*", (".log",), ("--cluster-metadata-decoder",)),
    "indexes": ("*/*", (".index", ".timeindex"), ("--verify-index-only",)),
    "aborted transactions": ("small-*/*", (".txnindex",), ()),
}


@pytest.mark.parametrize("name", DUMPS)
def test_kafkas_own_dump_finds_no_fault_and_prints_what_ours_prints(
    directory: Path, ours: Callable[..., str], name: str
) -> None:
    pattern, kinds, options = DUMPS[name]
    files = files_of(directory, pattern, *kinds)
    kafkas = dump_log_segments(directory, files, *options)
    assert kafkas.err == ""
    assert "isvalid: false" not in kafkas.out
    assert "invalid bytes" not in kafkas.out
    assert without_our_fields(ours(*options, *files)) == kafkas.out.splitlines()


def without_our_fields(text: str) -> list[str]:
    """The lines without the tagged fields of our own, which Kafka's tools pass over."""
    return [re.sub(_OURS, "", line) for line in text.splitlines()]


def test_the_record_of_a_sink_is_one_of_kafkas(directory: Path, ours: Callable[..., str]) -> None:
    files = files_of(directory, "__transaction_state-*/*", ".log")
    kafkas = dump_log_segments(directory, files, "--transaction-log-decoder").out
    lines = [line for line in kafkas.splitlines() if '"transactionalId":"__tailrace_sink/copy"' in line]
    assert len(lines) == 3, "one of each batch"
    for line in lines:
        assert '"producerId":-1' in line
        assert '"transactionStatus":0' in line
    assert ours("--transaction-log-decoder", *files).count('"sink":{"lastBatch":') == 3
    assert '"transactionalId":"__tailrace_sink/copy/r0/0/0.0"' in kafkas


def test_kafkas_own_check_of_indexes_at_its_start_accepts_ours(directory: Path) -> None:
    files = files_of(directory, "*/*", ".index", ".timeindex")
    done = dump_log_segments(directory, files, "--index-sanity-check")
    assert done.err == ""
    said = [line.split(" ", 1) for line in done.out.splitlines() if not line.startswith("Dumping ")]
    assert [path for path, _ in said] == files
    assert {verdict for _, verdict in said} == {"passed sanity check.", "is empty."}


def test_kafkas_own_dump_passes_over_a_key_index(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    log = Log.open(str(directory), files=OsFiles(), config=TopicConfig(), now_ms=0)
    log.append([stored_batch(0, 5)])
    assert end_by_index(log, KeyRange(0, 5), 5) == 0
    log.close()
    index, batches = (f"{0:020d}{suffix}" for suffix in (".khx", ".log"))
    done = dump_log_segments(directory, [index, batches])
    assert done.err == f"Ignoring unknown file {index}"
    assert "isvalid: true" in done.out


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("dump_log/*.txt")), ids=lambda path: path.stem)
def test_the_golden_texts_are_what_kafkas_own_dump_prints(path: Path) -> None:
    options, files, text = golden_dump(path)
    done = dump_log_segments(GOLDEN / "log_directory", files, *options)
    assert done == (text, "")


def write_golden() -> None:
    for path in GOLDEN.glob("dump_log/*.txt"):
        options, files, _ = golden_dump(path)
        done = dump_log_segments(GOLDEN / "log_directory", files, *options)
        path.write_text(f"$ {' '.join(options + files)}\n{done.out}", encoding="utf-8")


if __name__ == "__main__":
    write_golden()
