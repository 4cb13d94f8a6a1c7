"""The queue between the engine and the workers: the wakes of each side; and many threads on the same lanes."""

import random
import threading
from collections import defaultdict
from collections.abc import Callable

import pytest

from tailrace.client.keyed.breaker import Breaker
from tailrace.client.keyed.handler_work import HandlerWork
from tailrace.client.keyed.lanes import Lanes, LaneWork
from tailrace.client.keyed.outcomes import DONE, Done, KeyedRecord, Outcome, Retry, Skip
from tailrace.client.keyed.work_queue import MANY, WorkQueue
from tailrace.client.loop_thread import handler_thread
from tailrace.client.reader_settings import KeyedConsumerSettings
from tailrace.model.partitions import TopicPartition

NAME = TopicPartition("orders", 0)
SECONDS = 60.0


def records(keys: str, start: int = 0) -> list[KeyedRecord]:
    """A record for each letter, which is its key."""
    return [KeyedRecord(*NAME, start + number, 0, key.encode(), b"v", ()) for number, key in enumerate(keys)]


class QueueUnderTest:
    """A queue for so many workers, with notes of the workers that were woken."""

    def __init__(self, concurrency: int, *, most_records: int = 100) -> None:
        self.now_ms = 0
        self.notices = 0
        self.woken: list[str] = []
        lanes = Lanes(concurrency, most_records=most_records, most_bytes=1 << 30)
        self.breaker = Breaker(50, min_calls=5, pause_ms=100, longest_pause_ms=1_000)
        self.queue = WorkQueue(
            lanes,
            self.breaker,
            lambda: self.now_ms,
            group="g",
            most_records=most_records,
            on_outcomes=self._note_outcomes,
        )
        self.queue.open(NAME)
        self._wakes: dict[str, Callable[[], None]] = {}

    def _note_outcomes(self) -> None:
        self.notices += 1

    def _wake_of(self, worker: str) -> Callable[[], None]:
        return self._wakes.setdefault(worker, lambda: self.woken.append(worker))

    def take(self, worker: str) -> LaneWork | None:
        return self.queue.take(self._wake_of(worker))

    def exchange(
        self, work: LaneWork | None, worker: str, outcome: Outcome | None = DONE, fault: BaseException | None = None
    ) -> LaneWork | None:
        assert work is not None
        return self.queue.exchange(work, outcome, fault, self._wake_of(worker))

    def fail(self, work: LaneWork | None, worker: str) -> LaneWork | None:
        return self.exchange(work, worker, Retry(), ConnectionError("down"))

    def open_breaker(self, worker: str) -> None:
        """The first records fail, which opens the breaker."""
        work = self.take(worker)
        for _ in range(5):
            work = self.fail(work, worker)
        assert work is None
        assert self.breaker.is_open


def test_an_idle_worker_is_woken_by_a_record_and_wakes_the_next_worker_if_another_record_waits() -> None:
    tried = QueueUnderTest(3)
    for worker in ("first", "second", "third"):
        assert tried.take(worker) is None
    tried.queue.add(NAME, records("ab"))
    assert tried.woken == ["third"], "the worker that became idle last"
    first = tried.take("third")
    assert tried.woken == ["third", "second"]
    assert tried.take("second") is not None
    assert tried.woken == ["third", "second"], "no record waits"
    assert tried.exchange(first, "third") is None
    tried.queue.add(NAME, records("c", 2))
    assert tried.woken == ["third", "second", "third"]


def test_a_worker_beyond_the_concurrency_is_not_woken() -> None:
    tried = QueueUnderTest(1)
    tried.queue.add(NAME, records("ab"))
    work = tried.take("tasks")
    assert tried.take("tasks") is None
    tried.queue.add(NAME, records("c", 2))
    assert tried.woken == []
    following = tried.exchange(work, "tasks")
    assert following is not None
    assert following.record.key == b"b"


def test_the_end_of_a_hold_wakes_a_worker() -> None:
    tried = QueueUnderTest(2)
    tried.queue.add(NAME, records("a"))
    assert tried.exchange(tried.take("first"), "first", Retry(1)) is None
    assert tried.queue.next_deadline_ms == 1_000
    tried.queue.end_holds()
    assert tried.woken == []
    tried.now_ms = 1_000
    tried.queue.end_holds()
    assert tried.woken == ["first"]
    assert tried.queue.next_deadline_ms is None


def test_the_engine_is_notified_of_outcomes_only_while_it_awaits_them_and_once_for_many() -> None:
    tried = QueueUnderTest(1, most_records=40)
    tried.queue.add(NAME, records("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRST"))
    work = tried.take("worker")
    for _ in range(5):
        work = tried.exchange(work, "worker")
    assert tried.notices == 0, "it does not wait"
    tried.queue.begin_outcomes()
    assert tried.queue.is_full(NAME)
    for number in range(1, 25):
        work = tried.exchange(work, "worker")
        assert tried.notices == (number >= 40 // MANY), "once until it looks"
    tried.queue.begin_outcomes()
    assert not tried.queue.is_full(NAME)
    for _ in range(16):
        work = tried.exchange(work, "worker")
    assert tried.notices == 1


def test_the_engine_is_notified_at_once_of_the_last_outcome_and_of_a_retry() -> None:
    tried = QueueUnderTest(2)
    tried.queue.add(NAME, records("ab"))
    first, second = tried.take("first"), tried.take("second")
    tried.exchange(second, "second", Retry())
    assert tried.notices == 1, "the retry has a time"
    tried.queue.begin_outcomes()
    assert not tried.queue.is_idle([NAME])
    tried.exchange(first, "first")
    assert tried.notices == 2
    assert tried.queue.is_idle([NAME])
    assert tried.queue.take_done(NAME) == [0]
    assert tried.queue.take_done(NAME) == []


def test_a_stopped_queue_gives_no_record_and_an_ended_queue_wakes_all_workers() -> None:
    tried = QueueUnderTest(3)
    assert tried.take("first") is None
    tried.queue.add(NAME, records("ab"))
    work = tried.take("second")
    tried.queue.stop()
    assert tried.exchange(work, "second") is None
    assert tried.woken == ["first"]
    tried.queue.add(NAME, records("c", 2))
    assert tried.woken == ["first"]
    assert tried.take("first") is None
    tried.queue.end()
    assert sorted(tried.woken) == ["first", "first", "second"]
    assert tried.queue.is_ended


def test_an_outcome_of_a_partition_that_has_left_is_not_done_and_its_record_is_named() -> None:
    tried = QueueUnderTest(2)
    tried.queue.add(NAME, records("ab"))
    work = tried.take("first")
    assert tried.queue.close(NAME) == [work]
    tried.queue.open(NAME)
    assert tried.exchange(work, "first") is None
    assert tried.queue.take_done(NAME) == []
    assert not tried.queue.has_work


def test_outcomes_are_counted_but_for_calls_that_were_cancelled() -> None:
    tried = QueueUnderTest(5)
    tried.queue.add(NAME, records("abcde"))
    works = [tried.take("worker") for _ in range(5)]
    for work, outcome in zip(works, (Done(), Skip("no"), Retry(), None), strict=False):
        tried.exchange(work, "worker", outcome)
    tried.now_ms = 7
    metrics = tried.queue.metrics(corrupt_batches=0, ranges={})
    assert (metrics.done_total, metrics.skipped_total, metrics.retried_total, metrics.failed_total) == (1, 1, 1, 0)
    assert (metrics.in_hand, metrics.running, metrics.held) == (3, 1, 2)
    assert metrics.longest_running is not None
    assert (metrics.longest_running.key, metrics.longest_running.running_ms) == (b"e", 7)


def test_an_open_breaker_gives_no_record_but_a_try_after_each_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tried = QueueUnderTest(2)
    assert tried.take("idle") is None
    tried.queue.add(NAME, records("abcdefgh"))
    assert tried.woken == ["idle"]
    tried.open_breaker("worker")
    assert tried.notices == 1, "of the first retry; the engine has not looked yet"
    tried.queue.begin_outcomes()
    assert tried.take("other") is None
    assert tried.queue.next_deadline_ms == 100
    for now_ms in (99, 100):
        tried.now_ms = now_ms
        tried.woken.clear()
        tried.queue.end_holds()
        assert tried.woken == ["other"] * (now_ms == 100)
    work = tried.take("other")
    assert work is not None
    assert work.record.key == b"h", "the newest"
    assert tried.take("third") is None, "a try at a time"
    assert tried.queue.next_deadline_ms == 300
    assert tried.queue.metrics(corrupt_batches=0, ranges={}).breaker.name == "half-open"
    assert tried.fail(work, "other") is None
    assert tried.notices == 2, "the engine plans the next try"
    (opened,) = [line for line in caplog.messages if "calls of the handler have failed" in line]
    assert opened == (
        "group 'g': 5 of the last 5 calls of the handler have failed, the last with ConnectionError: down; the"
        " handler gets no records but for single tries, the first in 0.1 s, and failures count no attempt"
    )
    assert len([line for line in caplog.messages if "the handler has failed at offset" in line]) == 5


def test_a_try_that_succeeds_lets_all_workers_go_on(caplog: pytest.LogCaptureFixture) -> None:
    tried = QueueUnderTest(2)
    tried.queue.add(NAME, records("abcdefgh"))
    tried.open_breaker("worker")
    assert tried.take("other") is None
    tried.now_ms = 100
    tried.queue.end_holds()
    assert tried.woken == ["other"]
    work = tried.take("other")
    tried.queue.begin_outcomes()
    notices = tried.notices
    following = tried.exchange(work, "other")
    assert following is not None
    assert following.record.key == b"f"
    assert tried.woken == ["other", "worker"]
    assert tried.notices == notices + 1, "the engine plans the retries anew"
    assert tried.queue.next_deadline_ms == 1_000, "the time of the keys that had failed"
    assert (
        "group 'g': a call of the handler has succeeded after 0.1 s; the handler gets records again" in caplog.messages
    )


def test_failures_while_the_breaker_is_open_count_no_attempt() -> None:
    tried = QueueUnderTest(3)
    tried.queue.add(NAME, records("abcdefgh"))
    late = tried.take("late")
    tried.open_breaker("worker")
    assert tried.fail(late, "late") is None
    attempts: dict[bytes | None, int] = {}
    for _ in range(8):
        tried.now_ms += 1_000
        work = tried.take("worker")
        assert work is not None
        attempts[work.record.key] = work.attempt
        tried.fail(work, "worker")
    assert attempts == {b"g": 1, b"h": 1, b"a": 1} | dict.fromkeys([b"b", b"c", b"d", b"e", b"f"], 2)
    metrics = tried.queue.metrics(corrupt_batches=0, ranges={})
    assert (metrics.failed_total, metrics.breaker.opened_total) == (14, 1)
    assert metrics.oldest_held is not None
    assert metrics.oldest_held.attempts == 1


def test_an_outcome_without_a_sign_of_an_outage_does_not_open_the_breaker() -> None:
    tried = QueueUnderTest(1)
    tried.queue.add(NAME, records("abcdefghijklmnopqrst"))
    work = tried.take("worker")
    for outcome in (Retry(5), None, Skip("no"), Retry(0)) * 5:
        work = tried.exchange(work, "worker", outcome)
    assert not tried.breaker.is_open
    tried.queue.add(NAME, records("uvwxyz", 20))
    for _ in range(6):
        work = tried.exchange(work, "worker", Retry())
    assert tried.breaker.is_open, "the handler asks for the pause of a failure each time"


def test_an_exchange_waits_for_the_engine_that_has_the_lock() -> None:
    tried = QueueUnderTest(1)
    tried.queue.add(NAME, records("ab"))
    work, begins = tried.take("worker"), threading.Event()
    taken: list[LaneWork | None] = []

    def exchange() -> None:
        begins.set()
        taken.append(tried.exchange(work, "worker"))

    thread = threading.Thread(target=exchange)
    with tried.queue._lock:
        thread.start()
        assert begins.wait(SECONDS)
        thread.join(0.05)
        assert taken == []
    thread.join(SECONDS)
    (following,) = taken
    assert following is not None
    assert following.record.key == b"b"


def test_many_threads_keep_each_key_in_order_and_alone_and_leave_no_record() -> None:
    """Records come while threads work; some outcomes are retries, so that keys are held and go on."""
    count, keys, lock, is_done = 3_000, 37, threading.Lock(), threading.Event()
    running: set[bytes] = set()
    faults: list[str] = []
    done: dict[bytes, list[int]] = defaultdict(list)

    def handle(record: KeyedRecord) -> Outcome:
        assert record.key is not None
        with lock:
            if record.key in running:
                faults.append(f"{record.key!r} twice at a time")
            running.add(record.key)
        is_retry = record.attempt == 1 and random.random() < 0.05
        with lock:
            running.remove(record.key)
            if not is_retry:
                done[record.key].append(record.offset)
                if sum(map(len, done.values())) == count:
                    is_done.set()
        return Retry(random.choice([0, 0.001])) if is_retry else DONE

    settings = KeyedConsumerSettings("127.0.0.1:1", group="g", topics=["orders"])
    work = HandlerWork(settings, on_outcomes=lambda: None, on_end=lambda fault: faults.append(repr(fault)))
    work.begin(handle, 8, lambda: handler_thread().loop)
    work.queue.open(NAME)
    for start in range(0, count, 100):
        offsets = range(start, start + 100)
        work.queue.add(NAME, [KeyedRecord(*NAME, offset, 0, b"%d" % (offset % keys), b"", ()) for offset in offsets])
    assert is_done.wait(SECONDS)
    work.queue.end()
    assert faults == []
    assert dict(done) == {b"%d" % key: list(range(key, count, keys)) for key in range(keys)}
