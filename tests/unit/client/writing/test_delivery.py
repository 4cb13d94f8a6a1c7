"""The light future behaves as any other future of `concurrent.futures`."""

import asyncio
import concurrent.futures
import os
import signal
import threading

import pytest

from tailrace.client.writing import delivery
from tailrace.client.writing.delivery import DeliveryFuture, WriteFailures
from tailrace.client.writing.outgoing import RecordMetadata
from tailrace.model.errors import ErrorCode, KafkaError

WRITTEN = RecordMetadata("orders", 0, 7, 1_000)


def _future() -> DeliveryFuture:
    return DeliveryFuture(WriteFailures())


def test_a_result_set_before_the_wait_is_there() -> None:
    future = _future()
    assert not future.done()
    future.set_result(WRITTEN)
    assert future.done()
    assert future.result(0) == WRITTEN
    assert future.exception(0) is None


def test_a_waiter_in_another_thread_wakes_up() -> None:
    future = _future()
    threading.Timer(0.01, future.set_result, (WRITTEN,)).start()
    assert future.result(10) == WRITTEN


def test_a_wait_that_takes_too_long_says_so() -> None:
    with pytest.raises(concurrent.futures.TimeoutError):
        _future().result(0)


def test_a_failure_is_raised_to_its_caller() -> None:
    future = _future()
    future.set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "late"))
    with pytest.raises(KafkaError, match="late"):
        future.result(0)


def test_callbacks_run_whether_added_before_or_after() -> None:
    seen: list[int] = []
    future = _future()
    future.add_done_callback(lambda done: seen.append(done.result().offset))
    future.set_result(WRITTEN)
    future.add_done_callback(lambda done: seen.append(done.result().offset))
    assert seen == [7, 7]


def test_it_cannot_be_cancelled() -> None:
    assert not _future().cancel()


def test_wait_and_as_completed_know_it() -> None:
    futures = [_future() for _ in range(3)]
    futures[0].set_result(WRITTEN)

    def settle() -> None:
        for future in futures[1:]:
            future.set_result(WRITTEN)

    threading.Timer(0.01, settle).start()
    assert len(list(concurrent.futures.as_completed(futures, timeout=60))) == 3
    assert concurrent.futures.wait(futures, timeout=60).not_done == set()


def test_asyncio_can_wait_for_it() -> None:
    async def wait() -> RecordMetadata:
        future = _future()
        threading.Timer(0.01, future.set_result, (WRITTEN,)).start()
        return await asyncio.wrap_future(future)

    assert asyncio.run(wait()) == WRITTEN


def test_a_child_forked_while_the_parents_loop_settles_a_record_can_settle_its_own() -> None:
    """A thread that the child does not have holds the lock: the child's copy would never be released."""
    with delivery._making:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the handler of pytest's own alarm would raise
                signal.alarm(60)  # ends the child should it wait for ever
                future = _future()
                future.set_result(WRITTEN)
                code = 0 if future.result(0) == WRITTEN else 1
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
