"""Promises of every blocking client: forks, interrupts, threads that close while others call."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from uuid import uuid4

import pytest

from tailrace.client import facade
from tailrace.client.blocking import Admin, Producer, RangedFetch
from tailrace.client.blocking import ranged_fetch as blocking_fetch
from tailrace.client.errors import ClosedClient
from tailrace.client.facade import Facade
from tailrace.client.facade import blocking as as_blocking
from tailrace.client.loop_thread import LoopThread, loop_thread
from tailrace.client.reading import ranged_fetch
from tailrace.client.reading.ranged_fetch import Chunk
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

SECONDS = 60.0


def test_a_child_forked_while_a_thread_makes_a_client_can_make_its_own() -> None:
    admin = Admin("127.0.0.1:1", bootstrap_timeout_ms=1)
    with admin._client._lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the handler of pytest's own alarm would raise
                signal.alarm(60)
                with pytest.raises(KafkaError):
                    admin.list_topics()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    admin.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt and does no more, whatever handler was set before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_wait_for_records_raises_only_the_interrupt(
    tailrace_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_chunk = blocking_fetch._next_chunk

    async def interrupted(generator: object) -> Chunk | None:
        # Asked for by a caller that waits from here on, or in a moment.
        main = threading.main_thread().ident
        assert main is not None
        asyncio.get_running_loop().call_later(0.2, signal.pthread_kill, main, signal.SIGINT)
        return await next_chunk(generator)

    partition = TopicPartition(f"topic-{uuid4()}", 0)
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        producer.send(partition.topic, b"only").result(SECONDS)
    with RangedFetch(tailrace_cluster.bootstrap_servers) as fetch:
        stretches = fetch.fetch_range(partition, 0, 2)
        next(stretches)
        with monkeypatch.context() as patch:
            patch.setattr(blocking_fetch, "_next_chunk", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(stretches)
        assert len(list(fetch.fetch_range(partition, 0, 1))) == 1


@pytest.fixture
def is_closed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Ranges have two chunks, without a node; the event is set when an abandoned range has been closed."""
    closed = threading.Event()

    async def fetch_range(self: ranged_fetch.AsyncRangedFetch, *_: object, **options: object) -> AsyncIterator[Chunk]:
        try:
            yield Chunk([b"first"], 1)
            yield Chunk([b"second"], 2)
        finally:
            closed.set()

    monkeypatch.setattr(ranged_fetch.AsyncRangedFetch, "fetch_range", fetch_range)
    return closed


@pytest.fixture
def half_read() -> Iterator[list[Iterator[object]]]:
    """A range that is freed when this list is cleared: no other object holds the range."""
    with RangedFetch("127.0.0.1:1") as fetch:
        held = [fetch.fetch_range(TopicPartition("any", 0), 0, 2)]
        next(held[0])
        yield held  # type: ignore[misc]


def test_a_half_read_range_may_be_freed_on_the_clients_own_thread(
    is_closed: threading.Event, half_read: list[Iterator[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector frees the objects of a cycle on the thread where it runs."""
    faults: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: faults.append(unraisable.exc_value))

    async def drop() -> None:
        half_read.clear()

    loop_thread().call(drop())
    assert [str(fault) for fault in faults if isinstance(fault, AssertionError)] == []
    assert is_closed.wait(SECONDS)


def test_a_half_read_range_is_freed_without_waiting_for_the_clients_thread(
    is_closed: threading.Event, half_read: list[Iterator[object]]
) -> None:
    """The thread that frees the range may hold a lock that the loop waits for."""
    is_dropped = threading.Event()
    waited_for: list[bool] = []
    loop_thread().loop.call_soon_threadsafe(lambda: waited_for.append(is_dropped.wait(SECONDS)))
    half_read.clear()
    is_dropped.set()
    assert is_closed.wait(SECONDS)
    assert waited_for == [True]


def test_a_producer_that_is_closed_by_another_thread_settles_every_record(tailrace_cluster: Cluster) -> None:
    topic = f"topic-{uuid4()}"
    producer = Producer(tailrace_cluster.bootstrap_servers, linger_ms=50)
    producer.send(topic, b"first").result(SECONDS)
    sent = []
    begun = threading.Event()

    def keep_sending() -> None:
        try:
            while True:
                sent.append(producer.send(topic, b"more"))
                begun.set()
        except KafkaError as fault:
            assert isinstance(fault, ClosedClient)

    sending = threading.Thread(target=keep_sending)
    sending.start()
    assert begun.wait(SECONDS)
    with suppress(KafkaError):  # it tells of a record that came while it closed
        producer.close()
    sending.join(SECONDS)
    assert not sending.is_alive()
    faults = [future.exception(SECONDS) for future in sent]
    assert faults[0] is None
    assert {str(fault) for fault in faults if fault is not None} <= {str(ClosedClient("producer"))}


def test_a_call_after_the_end_of_the_thread_is_refused_and_what_ran_is_cancelled() -> None:
    thread = LoopThread()
    stopped = asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), thread.loop)
    thread.stop()
    assert stopped.cancelled()
    with pytest.raises(KafkaError, match="the interpreter ends") as refusal:
        thread.call(asyncio.sleep(0))
    assert refusal.value.code is ErrorCode.NETWORK_EXCEPTION
    thread.loop.close()


class IdleClient:
    """The double of an asyncio client that waits for an answer which never comes."""

    def __init__(self, asked: threading.Event) -> None:
        self._asked = asked

    async def ask(self) -> None:
        self._asked.set()
        await asyncio.Event().wait()

    async def close(self) -> None:
        raise AssertionError("the loop runs no more")


class IdleFacade(Facade[IdleClient]):
    ask = as_blocking(IdleClient.ask)


def test_a_daemon_thread_at_work_when_the_interpreter_ends_gets_an_error_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread leaves its `with` block by the fault of its call, which it knows to take, not by that of `close`."""
    thread = LoopThread()
    monkeypatch.setattr(facade, "loop_thread", lambda: thread)
    asked = threading.Event()
    faults: list[KafkaError] = []
    unhandled: list[object] = []

    def work() -> None:
        with IdleFacade(lambda: IdleClient(asked)) as client:
            try:
                client.ask()
            except KafkaError as fault:
                faults.append(fault)

    monkeypatch.setattr(threading, "excepthook", lambda fault: unhandled.append(fault.exc_value))
    working = threading.Thread(target=work, daemon=True)
    working.start()
    assert asked.wait(SECONDS)
    thread.stop()
    working.join(SECONDS)
    thread.loop.close()
    assert unhandled == []
    assert [fault.code for fault in faults] == [ErrorCode.NETWORK_EXCEPTION]
    assert "the interpreter ends" in str(faults[0])
