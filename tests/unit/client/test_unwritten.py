"""A record that was not written is told: by `send` if it can judge, otherwise by its future, `flush` or `close`."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any

import pytest

from tailrace.client import failures as failures_module
from tailrace.client.blocking import Producer
from tailrace.client.delivery import AwaitedDelivery, DeliveryFuture
from tailrace.client.failures import WriteFailures
from tailrace.client.outgoing import RecordMetadata, RecordNotWritten
from tailrace.client.producer import Producer as AsyncioProducer
from tailrace.model.errors import ErrorCode, KafkaError
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
    ({"headers": {"a": b"1"}}, r"^headers must be pairs \(name, bytes\), not a dict; give list\(headers\.items\(\)\)$"),
    ({"headers": ["name"]}, r"^headers must be pairs \(name, bytes\), not str; such as \[\('trace', b'1'\)\]$"),
    ({"headers": [("name", "text")]}, r"^value must be bytes or None, not str"),
    ({"headers": [(b"name", b"v")]}, r"^the name of a header must be str, not bytes; decode it: name\.decode\(\)$"),
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


def test_what_is_refused_by_send_takes_no_room_and_keeps_nothing_from_the_others(tailrace_cluster: Cluster) -> None:
    with Producer(tailrace_cluster.bootstrap_servers, buffer_memory=200, max_block_ms=0) as producer:
        for _ in range(10):
            with pytest.raises(TypeError):
                producer.send("unwritten", "text")  # type: ignore[arg-type]  # the mistake
            producer.send("unwritten", bytearray(b"bytes in another form")).result(SECONDS)


# what only the cluster can tell


def test_leaving_the_block_raises_for_records_that_were_never_asked_about(tailrace_cluster: Cluster) -> None:
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


def test_a_failure_that_was_asked_about_is_not_told_again(tailrace_cluster: Cluster) -> None:
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


def test_an_asyncio_producer_tells_the_same(tailrace_cluster: Cluster) -> None:
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
        failures.raise_unheard()
    failures.raise_unheard()


def test_a_batch_counts_its_records() -> None:
    failures = WriteFailures()
    failures.add(RecordNotWritten(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "late"), "orders", 3, records=500))
    with pytest.raises(KafkaError, match="500 records were not written, the first: orders-3: REQUEST_TIMED_OUT: late"):
        failures.raise_unheard()


def test_a_failure_that_is_asked_after_it_was_told_takes_nothing_from_the_next() -> None:
    failures = WriteFailures()
    first, second = DeliveryFuture(failures), DeliveryFuture(failures)
    first.set_exception(not_written())
    assert failures.take() is not None
    second.set_exception(not_written())
    assert first.exception(0) is not None
    assert failures.take() is not None


def test_a_wait_that_was_too_short_has_heard_nothing() -> None:
    failures = WriteFailures()
    future = DeliveryFuture(failures)
    with pytest.raises(TimeoutError):
        future.result(0)
    future.set_exception(not_written())
    assert failures.take() is not None


def test_whoever_waits_while_it_fails_has_heard_it() -> None:
    failures = WriteFailures()
    future = DeliveryFuture(failures)
    waiting = threading.Thread(target=lambda: future.exception(SECONDS))
    waiting.start()
    while not future._is_asked:
        waiting.join(0.001)
    future.set_exception(not_written())
    waiting.join(SECONDS)
    assert failures.take() is None


def test_the_log_has_one_warning_per_topic_and_period(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0]
    monkeypatch.setattr(failures_module.time, "monotonic_ns", lambda: now[0] * 1_000_000_000)
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


def test_asyncio_does_not_log_again_what_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        failures = WriteFailures()
        future = AwaitedDelivery(failures, loop=asyncio.get_running_loop())
        future.set_exception(not_written())
        del future
        assert failures.take() is not None

    asyncio.run(fail())
    assert [record.name for record in caplog.records] == ["tailrace.client"]
