"""The time in which a coordinator takes over a full segment: with the checkpoint beside its log, and with the log
alone."""

import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Final

from benchmarks.peers.peer import READY_TIMEOUT_S, TAILRACE, NotReady, Peer, tailrace
from benchmarks.results.figures import Column, Section, Target
from benchmarks.results.rounds import Rounds
from benchmarks.wire import Wire
from tailrace.coordinators.groups import records as group_records
from tailrace.coordinators.groups.records import OffsetCommitValue, OffsetRecord
from tailrace.coordinators.transactions import records as transaction_records
from tailrace.coordinators.transactions.records import TransactionRecord
from tailrace.coordinators.transactions.transaction import Transaction, TransactionState
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.groups import FindCoordinatorRequest
from tailrace.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from tailrace.protocol.messages.transactions import InitProducerIdRequest
from tailrace.protocol.records.batch import read_header
from tailrace.protocol.records.record import Record, build_batch
from tailrace.storage import AppendBatch, Log, OsFiles

NAME = "take-over"
DEFAULT_MEGABYTES = 100
LONGEST_S = 2.0
BY_LOG, BY_CHECKPOINT = "the log replayed", TAILRACE
_TAIL_BYTES: Final = 4_000_000
"""The bytes behind the checkpoint: at 4 MiB another checkpoint would be due."""
_KEYS: Final = 8
_BATCHES_AT_ONCE: Final = 1_000
_PAUSE_S: Final = 0.002
_CHECKPOINT_TIMEOUT_S: Final = 600.0
_SETTINGS = {
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
}

CONDITIONS = (
    "One node with one partition of each internal topic. While the node is stopped, the partitions are filled as "
    f"traffic fills them: {_KEYS} transactional ids, three records for each transaction; offsets of as many groups; "
    "one record a batch. Measured: from the first answer of the node to the first InitProducerId and the first "
    "OffsetFetch without an error. Without a checkpoint: the node's first start. Then the node writes checkpoints by "
    f"itself, is killed, and gets {_TAIL_BYTES / 1e6:.0f} MB more of log behind each checkpoint, a little less than "
    "the log after which the next checkpoint is written."
)

KeyValue = tuple[bytes, bytes | None]


def measure(rounds: Rounds, megabytes: int) -> Section:
    for _ in rounds:
        _round(rounds, megabytes)
    columns = (
        Column("transactions_s", "InitProducerId s", digits=2, beside=(BY_LOG,), shows_rounds=True),
        Column("groups_s", "OffsetFetch s", digits=2, beside=(BY_LOG,), shows_rounds=True),
    )
    targets = [
        Target(test=_test(megabytes), server=BY_CHECKPOINT, quantity=quantity, limit=LONGEST_S, unit="s", is_upper=True)
        for quantity in ("transactions_s", "groups_s")
    ]
    return rounds.section(
        NAME,
        "A coordinator takes over",
        CONDITIONS,
        columns,
        targets,
    )


def _test(megabytes: int) -> str:
    return f"{megabytes:,} MB of log"


def _round(rounds: Rounds, megabytes: int) -> None:
    with tailrace(settings=_SETTINGS) as node:
        data = node.process.output_file.parent / "data"
        logs = {
            data / str(TopicPartition(TRANSACTION_STATE_TOPIC, 0)): cycle(_transactions()),
            data / str(TopicPartition(GROUP_OFFSETS_TOPIC, 0)): cycle(_offsets()),
        }
        try:
            node.process.start()
            _served(node)
            node.process.stop()
            for directory, records in logs.items():
                _fill(directory, records, size_bytes=megabytes * 1_000_000)
            rounds.record(_test(megabytes), BY_LOG, **_start(node))
            _wait_for_checkpoints(node, list(logs))
            node.process.kill()
            for directory, records in logs.items():
                _fill(directory, records, size_bytes=_TAIL_BYTES)
            rounds.record(_test(megabytes), BY_CHECKPOINT, **_start(node))
        finally:
            node.process.kill()


def _transactions() -> list[KeyValue]:
    """Transactions of a few ids, one after the other, as written by their coordinator."""
    partitions = frozenset((TopicPartition("orders", 0), TopicPartition("payments", 3)))
    states = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    found: list[KeyValue] = []
    for number in range(_KEYS):
        for state in states:
            transaction = Transaction(
                producer_id=1_000 + number,
                producer_epoch=0,
                timeout_ms=60_000,
                state=state,
                partitions=frozenset() if state is TransactionState.COMPLETE_COMMIT else partitions,
                started_at_ms=1_700_000_000_000,
                updated_at_ms=1_700_000_000_000,
            )
            record = TransactionRecord(transactional_id=f"producer-{number}", transaction=transaction)
            found.append(transaction_records.encode_record(record))
    return found


def _offsets() -> list[KeyValue]:
    found: list[KeyValue] = []
    for number in range(_KEYS):
        value = OffsetCommitValue(offset=number, metadata="", commit_timestamp=int(time.time() * 1000))
        record = OffsetRecord(group_id=f"group-{number}", topic="orders", partition=0, value=value)
        found.append(group_records.encode_record(record))
    return found


def _fill(directory: Path, records: Iterator[KeyValue], *, size_bytes: int) -> None:
    """Append so many bytes of these records to a log that no node uses now."""
    config = TopicConfig(cleanup_policy=("compact",), segment_bytes=2**31 - 1)
    log = Log.open(str(directory), files=OsFiles(), config=config, now_ms=0)
    epoch = max(log.epochs.latest_epoch, 0)
    wanted = log.size_bytes + size_bytes
    while log.size_bytes < wanted:
        offset, batches = log.log_end_offset, []
        for at in range(_BATCHES_AT_ONCE):
            key, value = next(records)
            content = build_batch([Record(0, 1, key, value)], base_offset=offset + at, leader_epoch=epoch)
            batches.append(AppendBatch(bytes(content), read_header(content)))
        log.append(batches)
    log.close()


def _start(node: Peer) -> dict[str, float]:
    """Start the node; returns the seconds from its first answer until both coordinators serve."""
    node.process.start()
    node.wait_until_ready()
    return _served(node)


def _served(node: Peer) -> dict[str, float]:
    began = time.perf_counter()
    asked: dict[str, Callable[[Wire], int]] = {"transactions_s": _initialize, "groups_s": _fetch_offsets}
    seconds: dict[str, float] = {}
    deadline = time.monotonic() + READY_TIMEOUT_S
    while len(seconds) < len(asked) and time.monotonic() < deadline:
        try:
            with Wire(node.address) as wire:
                for name, ask in asked.items():
                    if name not in seconds and ask(wire) == ErrorCode.NONE:
                        seconds[name] = time.perf_counter() - began
        except OSError:  # it does not listen yet
            pass
        time.sleep(_PAUSE_S)
    if len(seconds) < len(asked):
        raise NotReady(f"its coordinators do not serve\n{node.process.output()[-2000:]}")
    return seconds


def _initialize(wire: Wire) -> int:
    wire.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=("producer-0",)), 4)
    answer = wire.ask(InitProducerIdRequest(transactional_id="producer-0", transaction_timeout_ms=60_000), 4)
    return int(answer.error_code)


def _fetch_offsets(wire: Wire) -> int:
    wire.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=("group-0",)), 4)
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="group-0", topics=None),))
    return int(wire.ask(request, 8).groups[0].error_code)


def _wait_for_checkpoints(node: Peer, directories: list[Path]) -> None:
    deadline = time.monotonic() + _CHECKPOINT_TIMEOUT_S
    while not all(any(directory.glob("*.checkpoint")) for directory in directories):
        if time.monotonic() > deadline:
            raise NotReady(f"no checkpoint is written\n{node.process.output()[-2000:]}")
        time.sleep(0.1)
