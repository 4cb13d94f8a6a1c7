"""The records of `__transaction_state`."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.coordinators.transactions.records import (
    CoordinatorRecord,
    SinkRecord,
    TransactionRecord,
    decode_record,
    encode_record,
    most_bytes,
)
from tailrace.coordinators.transactions.sink import MOST_PAST_RUNS, Sink
from tailrace.coordinators.transactions.transaction import TRANSITIONS, Transaction, TransactionState
from tailrace.model.errors import CorruptRecords
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import RowsDigest, sink_key

IDS = st.integers(-1, 2**62)
EPOCHS = st.integers(-1, 2**15 - 1)
TIMES = st.integers(-1, 2**60)
PARTITIONS = st.frozensets(st.builds(TopicPartition, st.sampled_from(["orders", "bills"]), st.integers(0, 9)))


@st.composite
def transactions(draw: st.DrawFn) -> Transaction:
    state = draw(st.sampled_from(sorted(TRANSITIONS)))
    return Transaction(
        producer_id=draw(IDS),
        producer_epoch=draw(EPOCHS),
        last_producer_epoch=draw(EPOCHS),
        previous_producer_id=draw(IDS),
        next_producer_id=draw(IDS),
        timeout_ms=draw(st.integers(0, 2**31 - 1)),
        state=state,
        partitions=frozenset() if state is TransactionState.EMPTY else draw(PARTITIONS),
        started_at_ms=draw(TIMES),
        updated_at_ms=draw(TIMES),
        client_version=draw(st.integers(0, 2)),
    )


@given(name=st.text(min_size=1, max_size=40), transaction=st.none() | transactions())
def test_a_record_is_read_as_it_was_written(name: str, transaction: Transaction | None) -> None:
    record = TransactionRecord(transactional_id=name, transaction=transaction)
    assert decode_record(*encode_record(record)) == record


def test_the_bytes_are_kafkas() -> None:
    transaction = Transaction(
        producer_id=4000,
        producer_epoch=3,
        timeout_ms=60_000,
        state=TransactionState.ONGOING,
        partitions=frozenset((TopicPartition("orders", 1),)),
        started_at_ms=1_000,
        updated_at_ms=2_000,
        client_version=2,
    )
    key, value = encode_record(TransactionRecord(transactional_id="pay", transaction=transaction))
    assert key.hex() == "0000" + "0003" + b"pay".hex()
    assert value is not None
    assert value.hex() == "".join(
        (
            "0001",  # version 1
            "0000000000000fa0",  # producer id
            "0003",  # epoch
            "0000ea60",  # timeout
            "01",  # Ongoing
            "02" + "07" + b"orders".hex() + "02" + "00000001" + "00",  # one topic, one partition, no tags
            "00000000000007d0",  # last update
            "00000000000003e8",  # start
            "01" + "02" + "02" + "0002",  # one tag: the client's transaction.version
        )
    )


def test_version_0_is_read() -> None:
    value = bytes.fromhex(
        "0000" + "0000000000000fa0" + "0003" + "0000ea60" + "04" + "00000000" + "00000000000007d0" + "00000000000003e8"
    )
    record = decode_record(bytes.fromhex("00000003") + b"pay", value)
    assert isinstance(record, TransactionRecord)
    assert record.transaction == Transaction(
        producer_id=4000,
        producer_epoch=3,
        timeout_ms=60_000,
        state=TransactionState.COMPLETE_COMMIT,
        started_at_ms=1_000,
        updated_at_ms=2_000,
    )


def test_other_kinds_of_records_are_passed_over() -> None:
    assert decode_record(b"\x00\x05whatever", b"value") is None


@pytest.mark.parametrize("state", [6, 7, 9])
def test_a_state_that_is_in_no_log_is_corruption(state: int) -> None:
    value = bytes.fromhex(f"00000000000000000fa000030000ea60{state:02x}00000000" + "00" * 16)
    with pytest.raises(CorruptRecords):
        decode_record(bytes.fromhex("00000003") + b"pay", value)


@given(key=st.none() | st.binary(max_size=12), value=st.none() | st.binary(max_size=60))
def test_any_bytes_are_a_record_or_corrupt(key: bytes | None, value: bytes | None) -> None:
    with contextlib.suppress(CorruptRecords):
        decode_record(key, value)


RUNS = st.text("abc019._-", min_size=1, max_size=12)
SINKS = st.builds(
    Sink,
    last_batch=st.integers(0, 2**63 - 1),
    run=RUNS,
    past_runs=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=MOST_PAST_RUNS).map(tuple),
    origin=st.none() | st.text(max_size=40),
    rows=st.none() | st.builds(RowsDigest, *(st.integers(-(2**63), 2**63 - 1),) * 2, st.integers(-128, 127)),
    updated_at_ms=TIMES,
)


@given(sink_id=RUNS, sink=st.none() | SINKS)
def test_a_sink_is_read_as_it_was_written(sink_id: str, sink: Sink | None) -> None:
    record = SinkRecord(sink_id=sink_id, sink=sink)
    assert decode_record(*encode_record(record)) == record


def test_the_record_of_a_sink_is_an_empty_transactional_id_with_a_tag_of_ours() -> None:
    sink = Sink(last_batch=5, run="r2", past_runs=(7,), origin="/checkpoint", updated_at_ms=2_000)
    key, value = encode_record(SinkRecord(sink_id="orders", sink=sink))
    assert key.hex() == "0000" + "0016" + b"__tailrace_sink/orders".hex()
    assert value is not None
    assert value.hex() == "".join(
        (
            "0001",  # version 1
            "ffffffffffffffff",  # no producer
            "ffff",
            "00000000",  # no timeout
            "00" + "00",  # Empty, no partitions
            "00000000000007d0",  # last update
            "ffffffffffffffff",  # no start
            "01" + "9a4e",  # one tag: 10,010
            "22" + "01",  # 34 bytes: there is a sink
            "0000000000000005" + "03" + b"r2".hex() + "02" + "0000000000000007" + "0c" + b"/checkpoint".hex() + "00",
        )
    )


def test_the_rows_of_a_sink_are_a_tagged_field_that_older_brokers_skip() -> None:
    sink = Sink(last_batch=5, run="r2", rows=RowsDigest(100, -1), updated_at_ms=2_000)
    _, value = encode_record(SinkRecord(sink_id="orders", sink=sink))
    assert value is not None
    rows = "0000000000000064" + "ffffffffffffffff" + "01" + "00"
    assert value.hex().endswith("03" + b"r2".hex() + "01" + "00" + "01" + "00" + "13" + "01" + rows)


def test_a_sinks_key_without_a_sink_is_passed_over() -> None:
    """An older broker has given the id to a producer."""
    stray = Transaction(producer_id=4, producer_epoch=0, timeout_ms=1, updated_at_ms=1)
    record = TransactionRecord(transactional_id=sink_key("orders"), transaction=stray)
    assert decode_record(*encode_record(record)) is None


@given(
    record=st.builds(
        TransactionRecord,
        transactional_id=st.text(min_size=1, max_size=40),
        transaction=st.none() | transactions(),
    )
    | st.builds(SinkRecord, sink_id=RUNS, sink=st.none() | SINKS)
)
def test_a_record_takes_no_more_than_its_bound(record: CoordinatorRecord) -> None:
    key, value = encode_record(record)
    of_a_record = 21  # length, attributes, deltas, lengths of key and value, headers, at their longest
    assert len(key) + len(value or b"") + of_a_record <= most_bytes(record)
