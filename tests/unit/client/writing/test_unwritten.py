"""A record that was not written is reported: by `send` if it can judge, otherwise by its future, `flush` or `close`."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any

import pytest

from tailrace.client.blocking import Producer
from tailrace.client.producer import AsyncProducer as AsyncioProducer
from tailrace.client.writing.delivery import AwaitedDelivery, DeliveryFuture, WriteFailures
from tailrace.client.writing.outgoing import RecordMetadata, RecordNotWritten
from tailrace.client.writing.record_checks import check_record
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import BatchBuilder
from tailrace.testing import Cluster

SECONDS = 60.0
NOWHERE = 99
"""A partition that no topic here has: only the cluster can tell."""


def not_written(topic: str = "orders", detail: str = "too large for it") -> RecordNotWritten:
    return RecordNotWritten(KafkaError(ErrorCode.MESSAGE_TOO_LARGE, detail), topic, 0)


# what `send` can judge

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"value": "text"}, r"^value must be bytes or None, not str; encode it: value\.encode\(\)$"),
    ({"key": "text"}, r"^key must be bytes or None, not str; encode it: key\.encode\(\)$"),
    (
        {"value": {"a": 1}},
        r"^value must be bytes or None, not dict; encode it, e\.g\. json\.dumps\(value\)\.encode\(\)$",
    ),
    ({"value": 7}, "^value must be bytes or None, not int;"),
    ({"headers": {"a": "text"}}, "^the value of header 'a' must be bytes or None, not str; encode it: value"),
    ({"headers": {7: b"v"}}, "^the name of a header must be str, not int$"),
    ({"headers": ["name"]}, r"^headers must be pairs \(name, bytes\), not str; such as \[\('trace', b'1'\)\]$"),
    ({"headers": [("name", "text")]}, "^the value of header 'name' must be bytes or None, not str"),
    ({"headers": [(b"name", b"v")]}, r"^the name of a header must be str, not bytes; decode it: name\.decode\(\)$"),
    ({"headers": 5}, r"^headers must be pairs \(name, bytes\), not int; such as \[\('trace', b'1'\)\]$"),
    ({"headers": False}, r"^headers must be pairs \(name, bytes\), not bool; such as"),
    ({"partition": "0"}, r"^partition must be int or None, not str$"),
    ({"topic": b"orders"}, r"^topic must be str, not bytes; decode it: topic\.decode\(\)$"),
]


@pytest.mark.parametrize(("record", "text"), WRONG, ids=str)
def test_a_wrong_type_is_refused_by_send_with_the_way_out(record: dict[str, Any], text: str) -> None:
    with Producer("127.0.0.1:1") as producer, pytest.raises(TypeError, match=text):
        producer.send(**{"topic": "orders", "value": b"v", **record})

    async def send() -> None:
        async with AsyncioProducer("127.0.0.1:1") as producer:
            await producer.send(**{"topic": "orders", "value": b"v", **record})

    with pytest.raises(TypeError, match=text):
        asyncio.run(send())


def test_a_record_larger_than_a_request_is_refused_by_send_with_both_sizes() -> None:
    with Producer("127.0.0.1:1", max_request_size=2_000) as producer:
        with pytest.raises(
            KafkaError, match=r"2024 bytes for topic 'orders' is larger than max\.request\.size 2000"
        ) as caught:
            producer.send("orders", b"x" * 2_000)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("name", ["", "..", "a b", "x" * 250])
def test_a_topic_name_that_is_not_legal_is_refused_by_send_with_the_rule(name: str) -> None:
    with Producer("127.0.0.1:1") as producer, pytest.raises(KafkaError, match="topic name") as caught:
        producer.send(name, b"v")
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_header_name_that_is_no_text_is_refused_by_send() -> None:
    with Producer("127.0.0.1:1") as producer, pytest.raises(KafkaError, match="cannot be written as UTF-8"):
        producer.send("orders", b"v", headers=[("\ud800", b"half a character")])


def test_records_refused_by_send_take_no_room_and_do_not_hold_back_others(tailrace_cluster: Cluster) -> None:
    with Producer(tailrace_cluster.bootstrap_servers, buffer_memory=200, max_block_ms=0) as producer:
        for _ in range(10):
            with pytest.raises(TypeError):
                producer.send("unwritten", "text")  # type: ignore[arg-type]  # the mistake
            producer.send("unwritten", bytearray(b"bytes in another form")).result(SECONDS)  # type: ignore[arg-type]  # is taken, too


@pytest.mark.parametrize("headers", [None, (), [], {}, iter(())], ids=lambda given: type(given).__name__)
def test_no_headers_may_be_given_in_any_form(headers: Any) -> None:
    record = check_record("orders", None, None, b"v", headers, max_request_size=2_000)
    assert record.headers == ()
    assert record.cost == check_record("orders", None, None, b"v", (), max_request_size=2_000).cost


def test_headers_are_kept_from_any_iterable() -> None:
    headers: Any = iter([("a", b"1")])
    record = check_record("orders", None, None, b"v", headers, max_request_size=2_000)
    assert record.headers == (("a", b"1"),)


# what only the cluster can tell


def test_leaving_the_block_raises_for_records_whose_futures_were_never_read(tailrace_cluster: Cluster) -> None:
    def write() -> None:
        with Producer(tailrace_cluster.bootstrap_servers) as producer:
            for _ in range(3):
                producer.send("unwritten", b"v", partition=NOWHERE)
            producer.send("unwritten", b"v")

    with pytest.raises(KafkaError, match=r"3 records were not written, the first: unwritten-99: UNKNOWN_TOPIC_OR_PART"):
        write()


def test_flush_raises_once_and_close_does_not_repeat_it(tailrace_cluster: Cluster) -> None:
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        producer.send("unwritten", b"v", partition=NOWHERE)
        with pytest.raises(KafkaError, match="^UNKNOWN_TOPIC_OR_PARTITION: 1 record was not written: unwritten-99: "):
            producer.flush()
        producer.flush()
        producer.send("unwritten", b"v").result(SECONDS)


def test_a_failure_is_not_reported_again_after_its_future_was_read(tailrace_cluster: Cluster) -> None:
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        heard: list[object] = []
        producer.send("unwritten", b"v", partition=NOWHERE).add_done_callback(heard.append)
        with pytest.raises(KafkaError):
            producer.send("unwritten", b"v", partition=NOWHERE).result(SECONDS)
        assert producer.send("unwritten", b"v", partition=NOWHERE).exception(SECONDS) is not None
        late = producer.send("unwritten", b"v", partition=NOWHERE)
        wait_for([late], SECONDS)
        assert late.exception() is not None
        producer.flush()
        assert len(heard) == 1


def test_the_exception_of_the_block_comes_out_with_a_note_of_the_records(tailrace_cluster: Cluster) -> None:
    def write() -> None:
        with Producer(tailrace_cluster.bootstrap_servers) as producer:
            producer.send("unwritten", b"v", partition=NOWHERE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        write()
    (note,) = caught.value.__notes__
    assert "1 record was not written: unwritten-99" in note


def test_an_asyncio_producer_reports_failures_too(tailrace_cluster: Cluster) -> None:
    async def leave(*, ask: Callable[["asyncio.Future[RecordMetadata]"], Any] | None) -> None:
        async with AsyncioProducer(tailrace_cluster.bootstrap_servers) as producer:
            sent = await producer.send("unwritten", b"v", partition=NOWHERE)
            if ask is not None:
                with pytest.raises(KafkaError):
                    await ask(sent)

    async def awaited(sent: "asyncio.Future[RecordMetadata]") -> None:
        await sent

    with pytest.raises(KafkaError, match="1 record was not written: unwritten-99"):
        asyncio.run(leave(ask=None))
    asyncio.run(leave(ask=awaited))
    asyncio.run(leave(ask=lambda sent: asyncio.wait_for(sent, SECONDS)))
    asyncio.run(leave(ask=lambda sent: asyncio.gather(sent)))


def test_an_asyncio_producer_that_was_not_started_says_how_to(tailrace_cluster: Cluster) -> None:
    async def send() -> None:
        producer = AsyncioProducer(tailrace_cluster.bootstrap_servers)
        await producer.send("unwritten", b"v")

    with pytest.raises(KafkaError, match=r"use `async with Producer\(\.\.\.\)`, or call start\(\)"):
        asyncio.run(send())


# what is kept of it


def test_a_million_failures_take_the_room_of_a_few() -> None:
    failures = WriteFailures()
    fault = not_written()
    for _ in range(100_000):
        failures.add(fault)
    assert len(failures._kept) <= 16
    with pytest.raises(
        KafkaError, match="100000 records were not written, the first: orders-0: MESSAGE_TOO_LARGE: too"
    ):
        failures.raise_unreported()
    failures.raise_unreported()


def test_a_batch_counts_its_records() -> None:
    failures = WriteFailures()
    failures.add(RecordNotWritten(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "late"), "orders", 3, records=500))
    with pytest.raises(KafkaError, match="500 records were not written, the first: orders-3: REQUEST_TIMED_OUT: late"):
        failures.raise_unreported()


def test_a_whole_batch_that_is_refused_before_it_is_sent_counts_its_records(tailrace_cluster: Cluster) -> None:
    builder = BatchBuilder(codec=Codec.NONE)
    for _ in range(100):
        builder.append(1_700_000_000_000, None, b"v")
    whole = builder.build()
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        producer.send("unwritten", b"v").result(SECONDS)
        producer.send_batch("unwritten", NOWHERE, whole)
        with pytest.raises(KafkaError, match="100 records were not written, the first: unwritten-99: UNKNOWN_TOPIC"):
            producer.flush()
        producer.send_batch("unwritten", 0, b"no batch")
        with pytest.raises(KafkaError, match="1 record was not written: unwritten-0: CORRUPT"):
            producer.flush()
        producer.send_batch("unwritten", 0, whole + b"more than one")
        with pytest.raises(KafkaError, match="100 records were not written, the first: unwritten-0: INVALID_RECORD"):
            producer.flush()


def test_a_future_read_after_the_report_leaves_the_next_failures_counted() -> None:
    failures = WriteFailures()
    first, second = DeliveryFuture(failures), DeliveryFuture(failures)
    first.set_exception(not_written())
    assert failures.pop_all() is not None
    second.set_exception(not_written())
    assert first.exception(0) is not None
    assert failures.pop_all() is not None


def test_a_wait_that_timed_out_does_not_count_as_reading() -> None:
    failures = WriteFailures()
    future = DeliveryFuture(failures)
    with pytest.raises(TimeoutError):
        future.result(0)
    future.set_exception(not_written())
    assert failures.pop_all() is not None


def test_a_wait_during_the_failure_reports_it() -> None:
    failures = WriteFailures()
    future = DeliveryFuture(failures)
    waiting = threading.Thread(target=lambda: future.exception(SECONDS))
    waiting.start()
    while not future._readers:
        waiting.join(0.001)
    future.set_exception(not_written())
    waiting.join(SECONDS)
    assert failures.pop_all() is None


def test_a_wait_that_timed_out_leaves_the_failure_to_another_thread_that_waits() -> None:
    failures = WriteFailures()
    future = DeliveryFuture(failures)
    heard: list[BaseException | None] = []
    waiting = threading.Thread(target=lambda: heard.append(future.exception(SECONDS)))
    waiting.start()
    while not future._readers:
        waiting.join(0.001)
    with pytest.raises(TimeoutError):
        future.result(0)
    future.set_exception(not_written())
    waiting.join(SECONDS)
    assert len(heard) == 1
    assert failures.pop_all() is None


def test_a_wait_that_times_out_while_the_record_fails_does_not_count_as_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = WriteFailures()
    future = DeliveryFuture(failures)

    def run_out(self: Future[RecordMetadata], timeout: float | None = None) -> RecordMetadata:
        future.set_exception(not_written())
        raise TimeoutError

    monkeypatch.setattr(Future, "result", run_out)
    with pytest.raises(TimeoutError):
        future.result(0)
    assert failures.pop_all() is not None


def test_of_two_waits_one_that_got_the_failure_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = WriteFailures()
    future = DeliveryFuture(failures)

    def run_out(self: Future[RecordMetadata], timeout: float | None = None) -> RecordMetadata:
        future.set_exception(not_written())
        assert future.exception(0) is not None
        raise TimeoutError

    monkeypatch.setattr(Future, "result", run_out)
    with pytest.raises(TimeoutError):
        future.result(0)
    assert failures.pop_all() is None


async def _wait_a_moment(sent: "asyncio.Future[RecordMetadata]") -> None:
    assert await asyncio.wait([sent], timeout=0) == (set(), {sent})


async def _wait_shielded(sent: "asyncio.Future[RecordMetadata]") -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(sent), 0.001)


async def _take_back_a_callback(sent: "asyncio.Future[RecordMetadata]") -> None:
    sent.add_done_callback(print)
    sent.add_done_callback(print)
    assert sent.remove_done_callback(print) == 2
    assert sent.remove_done_callback(print) == 0


async def _ask_before_it_is_known(sent: "asyncio.Future[RecordMetadata]") -> None:
    for ask in (sent.result, sent.exception):
        with pytest.raises(asyncio.InvalidStateError):
            ask()


@pytest.mark.parametrize(
    "ask",
    [_wait_a_moment, _wait_shielded, _take_back_a_callback, _ask_before_it_is_known],
    ids=lambda ask: ask.__name__,
)
async def test_a_wait_for_an_asyncio_future_that_timed_out_does_not_count_as_reading(
    ask: Callable[["asyncio.Future[RecordMetadata]"], Awaitable[None]],
) -> None:
    failures = WriteFailures()
    sent = AwaitedDelivery(failures, loop=asyncio.get_running_loop())
    await ask(sent)
    await asyncio.sleep(0)  # a shield takes its callback back in the loop's next turn
    sent.set_exception(not_written())
    assert failures.pop_all() is not None


async def _await_it(sent: "asyncio.Future[RecordMetadata]") -> None:
    await sent


@pytest.mark.parametrize(
    "ask",
    [
        _await_it,
        lambda sent: asyncio.wait_for(sent, SECONDS),
        lambda sent: asyncio.wait_for(asyncio.shield(sent), SECONDS),
        lambda sent: asyncio.gather(sent),
    ],
    ids=["await", "wait_for", "shield", "gather"],
)
@pytest.mark.parametrize("is_known", [False, True], ids=["before", "after"])
async def test_a_wait_for_an_asyncio_future_gets_its_failure(
    ask: Callable[["asyncio.Future[RecordMetadata]"], Any], is_known: bool
) -> None:
    failures = WriteFailures()
    sent = AwaitedDelivery(failures, loop=asyncio.get_running_loop())

    async def wait() -> None:
        with pytest.raises(RecordNotWritten):
            await ask(sent)

    if is_known:
        sent.set_exception(not_written())
    waiting = asyncio.create_task(wait())
    for _ in range(3):
        await asyncio.sleep(0)
    if not is_known:
        sent.set_exception(not_written())
        assert failures.pop_all() is None, "a flush right now must not tell it, too"
    await waiting
    assert failures.pop_all() is None


async def test_the_result_of_an_asyncio_future_can_be_awaited_twice() -> None:
    sent = AwaitedDelivery(WriteFailures(), loop=asyncio.get_running_loop())
    waits = [asyncio.create_task(_await_it(sent)) for _ in range(2)]
    await asyncio.sleep(0)
    sent.set_result(RecordMetadata("orders", 0, 7, 1_000))
    await asyncio.gather(*waits)
    assert (await sent).offset == 7


def test_the_log_has_one_warning_per_topic_and_period(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0] * 1_000_000_000)
    caplog.set_level(logging.WARNING, logger="tailrace.client")
    failures = WriteFailures()
    futures: list[Future[RecordMetadata]] = []

    def fail(topic: str) -> None:
        future = DeliveryFuture(failures)
        future.set_exception(not_written(topic))
        futures.append(future)

    for _ in range(1_000):
        fail("orders")
    fail("payments")
    now[0] = 30
    fail("orders")
    assert [record.getMessage() for record in caplog.records] == [
        "1 record for topic orders was not written: MESSAGE_TOO_LARGE: too large for it",
        "1 record for topic payments was not written: MESSAGE_TOO_LARGE: too large for it",
        "1000 records for topic orders were not written: MESSAGE_TOO_LARGE: too large for it",
    ]


def test_asyncio_does_not_log_reported_failures_again(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        failures = WriteFailures()
        future = AwaitedDelivery(failures, loop=asyncio.get_running_loop())
        future.set_exception(not_written())
        del future
        assert failures.pop_all() is not None

    asyncio.run(fail())
    assert [record.name for record in caplog.records] == ["tailrace.client"]
