"""Handlers of all kinds, and the records that they get."""

import asyncio
import json
import queue
import threading
from functools import partial
from typing import Any

import pytest

from tailrace.client.keyed.handler import Handler, is_coroutine_handler, name_of
from tailrace.client.keyed.handler_work import HandlerWork
from tailrace.client.keyed.lanes import LaneWork
from tailrace.client.keyed.outcomes import Done, KeyedRecord, Outcome, Retry, Skip, prepared
from tailrace.client.loop_thread import handler_thread
from tailrace.client.reader_settings import KeyedConsumerSettings
from tailrace.model.partitions import TopicPartition

NAME = TopicPartition("orders", 0)
RECORD = KeyedRecord("orders", 0, 7, 1_000, b"k", b'{"a": 1}', (("h", b"x"),))
SECONDS = 60.0

Ended = tuple[Outcome | None, BaseException | None]


def call(handler: Handler, decode: Any = None, ends: list[BaseException] | None = None) -> Ended:
    """The outcome of the handler for RECORD, and the exception behind the outcome."""
    settings = KeyedConsumerSettings("127.0.0.1:1", group="g", topics=["orders"], decode=decode)
    found: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    ended: list[BaseException] = [] if ends is None else ends
    work = HandlerWork(settings, on_outcomes=lambda: None, on_end=ended.append)
    work.begin(handler, 2, lambda: handler_thread().loop)
    exchange = work.queue.exchange

    def noted(done: LaneWork, outcome: Outcome | None, fault: BaseException | None, on_work: Any) -> LaneWork | None:
        found.put((outcome, fault))
        return exchange(done, outcome, fault, on_work)

    work.queue.exchange = noted  # type: ignore[method-assign, assignment]
    work.queue.open(NAME)
    work.queue.add(NAME, [RECORD])
    try:
        return found.get(timeout=SECONDS)
    finally:
        work.queue.end()


async def coroutine_handler(record: KeyedRecord) -> Skip:
    return Skip(threading.current_thread().name)


class CallableWithCoroutine:
    """A handler that is an object."""

    async def __call__(self, record: KeyedRecord) -> Skip:
        return Skip(threading.current_thread().name)


@pytest.mark.parametrize("handler", [coroutine_handler, CallableWithCoroutine()], ids=["function", "object"])
def test_a_coroutine_function_runs_on_the_loop_of_handlers(handler: Handler) -> None:
    assert is_coroutine_handler(handler)
    assert call(handler) == (Skip("tailrace-handlers"), None)


def test_a_plain_function_runs_in_a_thread() -> None:
    outcome, _ = call(lambda record: Skip(threading.current_thread().name))
    assert isinstance(outcome, Skip)
    assert outcome.reason.startswith("tailrace-handler_")


def test_a_plain_function_that_returns_a_coroutine_has_it_awaited() -> None:
    assert call(lambda record: coroutine_handler(record)) == (Skip("tailrace-handlers"), None)


def test_a_handler_gets_the_record_decoded() -> None:
    got: list[KeyedRecord] = []
    assert call(got.append, json.loads) == (Done(), None)
    assert got == [KeyedRecord("orders", 0, 7, 1_000, b"k", {"a": 1}, (("h", b"x"),), None, 1)]


def test_a_record_that_does_not_decode_comes_as_it_is_with_the_fault() -> None:
    record = prepared(RECORD._replace(value=b"{"), 1, json.loads)
    assert record.value == b"{"
    assert isinstance(record.fault, ValueError)


def test_a_record_without_a_value_is_not_decoded() -> None:
    assert prepared(RECORD._replace(value=None), 1, json.loads).value is None
    assert prepared(RECORD, 1, None) == KeyedRecord(*RECORD)


def test_the_end_of_an_iterator_in_a_thread_is_an_exception_too() -> None:
    outcome, fault = call(lambda record: next(iter(())))
    assert outcome == Retry()
    assert isinstance(fault, RuntimeError)
    assert "has raised StopIteration" in str(fault)


def fail(fault: BaseException) -> Any:
    raise fault


async def fail_later(fault: BaseException) -> Any:
    raise fault


@pytest.mark.parametrize("fault", [ValueError("no"), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("kind", ["plain", "coroutine", "awaitable"])
def test_an_exception_of_the_handler_is_a_retry(kind: str, fault: BaseException) -> None:
    async def coroutine(record: KeyedRecord) -> None:
        raise fault

    handlers: dict[str, Handler] = {
        "plain": lambda record: fail(fault),
        "coroutine": coroutine,
        "awaitable": lambda record: fail_later(fault),
    }
    outcome, found = call(handlers[kind])
    assert outcome == Retry()
    assert isinstance(found, type(fault))


@pytest.mark.parametrize("kind", ["plain", "coroutine", "awaitable"])
def test_the_end_of_the_program_in_a_handler_is_no_outcome_and_the_loop_goes_on(kind: str) -> None:
    async def coroutine(record: KeyedRecord) -> None:
        raise SystemExit(3)

    handlers: dict[str, Handler] = {
        "plain": lambda record: fail(SystemExit(3)),
        "coroutine": coroutine,
        "awaitable": lambda record: fail_later(SystemExit(3)),
    }
    ends: list[BaseException] = []
    assert call(handlers[kind], ends=ends) == (None, None)
    assert [type(end) for end in ends] == [SystemExit]
    assert call(coroutine_handler) == (Skip("tailrace-handlers"), None)


def test_a_handler_has_the_name_of_its_function_or_of_its_class() -> None:
    assert name_of(coroutine_handler) == "coroutine_handler"
    assert name_of(partial(coroutine_handler)) == "coroutine_handler"
    assert name_of(CallableWithCoroutine()) == "CallableWithCoroutine"
