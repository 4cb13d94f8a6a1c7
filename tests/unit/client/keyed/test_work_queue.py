"""The queue between the engine and the workers: the wakes of each side; and many threads on the same lanes."""

import random
import threading
from collections import defaultdict
from collections.abc import Callable

from tailrace.client.keyed.handler_work import HandlerWork
from tailrace.client.keyed.lanes import Lanes, LaneWork
from tailrace.client.keyed.outcomes import DONE, Done, KeyedRecord, Outcome, Retry, Skip
from tailrace.client.keyed.work_queue import MANY, WorkQueue
from tailrace.client.loop_thread import handler_thread
from tailrace.client.settings import KeyedConsumerSettings
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
        self.queue = WorkQueue(
            lanes, lambda: self.now_ms, group="g", most_records=most_records, on_outcomes=self._note_outcomes
        )
        self.queue.open(NAME)
        self._wakes: dict[str, Callable[[], None]] = {}

    def _note_outcomes(self) -> None:
        self.notices += 1

    def _wake_of(self, worker: str) -> Callable[[], None]:
        return self._wakes.setdefault(worker, lambda: self.woken.append(worker))

    def take(self, worker: str) -> LaneWork | None:
        return self.queue.take(self._wake_of(worker))

    def exchange(self, work: LaneWork | None, worker: str, outcome: Outcome | None = DONE) -> LaneWork | None:
        assert work is not None
        return self.queue.exchange(work, outcome, None, self._wake_of(worker))


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
