"""Handlers of all kinds, and the records that they get."""

import asyncio
import json
import threading
from typing import Any

import pytest

from tailrace.client.keyed.handler import Handler, HandlerCalls
from tailrace.client.keyed.lanes import LaneWork
from tailrace.client.keyed.outcomes import Done, KeyedRecord, Skip, keyed_record
from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.model.partitions import TopicPartition

RECORD = ConsumerRecord("orders", 0, 7, 1_000, b"k", b'{"a": 1}', (("h", b"x"),))
WORK = LaneWork(TopicPartition("orders", 0), RECORD, 2, 1)


def call(handler: Handler, decode: Any = None) -> object:
    calls = HandlerCalls(handler, decode, 2)
    try:
        return asyncio.run(calls.call(WORK))
    finally:
        calls.close()


async def coroutine_handler(record: KeyedRecord) -> Skip:
    return Skip(threading.current_thread().name)


class CallableWithCoroutine:
    """A handler that is an object."""

    async def __call__(self, record: KeyedRecord) -> Skip:
        return Skip(threading.current_thread().name)


@pytest.mark.parametrize("handler", [coroutine_handler, CallableWithCoroutine()], ids=["function", "object"])
def test_a_coroutine_function_runs_on_the_loop(handler: Handler) -> None:
    assert HandlerCalls(handler, None, 1).is_async
    assert call(handler) == Skip(threading.current_thread().name)


def test_a_plain_function_runs_in_a_thread() -> None:
    result = call(lambda record: Skip(threading.current_thread().name))
    assert isinstance(result, Skip)
    assert result.reason.startswith("tailrace-handler")


def test_a_plain_function_that_returns_a_coroutine_has_it_awaited() -> None:
    assert call(lambda record: coroutine_handler(record)) == Skip(threading.current_thread().name)


def test_a_handler_gets_the_record_decoded() -> None:
    got: list[KeyedRecord] = []
    assert call(got.append, json.loads) is None
    assert got == [KeyedRecord("orders", 0, 7, 1_000, b"k", {"a": 1}, (("h", b"x"),), None, 2)]


def test_a_record_that_does_not_decode_comes_as_it_is_with_the_fault() -> None:
    record = keyed_record(RECORD._replace(value=b"{"), 1, json.loads)
    assert record.value == b"{"
    assert isinstance(record.fault, ValueError)


def test_a_record_without_a_value_is_not_decoded() -> None:
    assert keyed_record(RECORD._replace(value=None), 1, json.loads).value is None
    assert keyed_record(RECORD, 1, None) == KeyedRecord(*RECORD)


def test_the_end_of_an_iterator_in_a_thread_is_an_exception_too() -> None:
    with pytest.raises(RuntimeError, match="has raised StopIteration"):
        call(lambda record: next(iter(())))


def test_an_exception_of_the_handler_is_raised() -> None:
    def failing(record: KeyedRecord) -> Done:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        call(failing)
