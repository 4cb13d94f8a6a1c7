"""Sources of one query wait together, and no source waits while another source has records."""

from collections.abc import Iterable

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark.offsets import Offsets, Positions
from tailrace.spark.reading import stream_reader
from tailrace.spark.reading.look_pace import MOST_SOURCES, ROUND_S, IdleWait
from tailrace.spark.reading.source_options import SourceOptions, parse_source_options
from tailrace.spark.source import ROW

AT = TopicPartition("t", 0)
OVERHEAD_S = 0.003
"""The time of Spark between two questions."""


def idle_round(waits: list[IdleWait], now: float) -> float:
    """Spark asks all sources, and none has records; the end of the round."""
    for wait in waits:
        now += OVERHEAD_S
        now += (length := wait.begin(now))
        if length:
            wait.ended(now)
    return now


@pytest.mark.parametrize("count", [1, 2, 4, MOST_SOURCES])
def test_a_round_of_quiet_sources_takes_as_long_as_that_of_one(count: int) -> None:
    waits = [IdleWait() for _ in range(count)]
    now = 0.0
    for _ in range(20):
        began, now = now, idle_round(waits, now)
    assert ROUND_S / 2 <= now - began <= ROUND_S + count * OVERHEAD_S + 1e-9


def test_no_source_waits_while_the_query_plans_batches() -> None:
    quiet = IdleWait()
    now = idle_round([quiet], 0.0)
    for _ in range(5):
        quiet.batch_was_planned()
        assert quiet.begin(now) == 0
        now += 3.0
    assert quiet.begin(now) > ROUND_S / 2, "the time of a batch is no wait of another source"


def test_a_source_that_is_left_alone_waits_longer_again() -> None:
    waits = [IdleWait() for _ in range(4)]
    now = 0.0
    for _ in range(5):
        now = idle_round(waits, now)
    alone = waits[0]
    now = idle_round([alone], now)
    for _ in range(20):
        began, now = now, idle_round([alone], now)
    assert now - began > 0.9 * ROUND_S


def test_a_question_in_which_records_come_says_nothing_about_the_others() -> None:
    wait = IdleWait()
    assert wait.begin(0.0) == ROUND_S
    assert wait.begin(100.0) == ROUND_S, "the batch with the records took the time between"


def test_a_wait_has_a_shortest_length() -> None:
    """A trigger of ten seconds looks like many sources."""
    wait, now = IdleWait(), 0.0
    for _ in range(50):
        now += wait.begin(now)
        wait.ended(now)
        now += 10.0
    assert wait.begin(now) == ROUND_S / MOST_SOURCES


class QuietPlanner:
    """The double of a planner whose topic has no new records."""

    def __init__(self, options: SourceOptions) -> None: ...

    def ends(self) -> Positions:
        return Positions({AT: 5}, {})

    def check_topics(self, before: Positions, now: Positions) -> Positions:
        return before

    def check_end(self, at: Offsets, now: Offsets) -> Offsets:
        return now

    def first_of_new(self, found: Iterable[TopicPartition]) -> Offsets:
        return {}


class SleptClock:
    """The double of the module `time`: a sleep takes no time of the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SleptClock:
    clock = SleptClock()
    monkeypatch.setattr(stream_reader, "time", clock)
    return clock


def quiet_reader(**options: str) -> stream_reader.TailraceStreamReader:
    base = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    return stream_reader.TailraceStreamReader(ROW, parse_source_options({**base, **options}, streaming=True))


def test_the_time_in_which_a_reader_asks_for_a_topics_id_is_no_wait_of_another_source(
    clock: SleptClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that was made anew is asked for several times before a stream believes it."""

    class DoubtfulPlanner(QuietPlanner):
        def check_topics(self, before: Positions, now: Positions) -> Positions:
            clock.sleep(0.6)
            return before

    monkeypatch.setattr(stream_reader, "Planner", DoubtfulPlanner)
    reader = quiet_reader()
    for _ in range(3):
        began = clock.now
        reader.latestOffset({"t": {"0": 5}}, ReadAllAvailable())
        assert clock.now - began == pytest.approx(ROUND_S + 0.6)


def test_the_time_in_which_a_reader_shows_its_progress_is_no_wait_of_another_source(
    clock: SleptClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that cannot be updated is tried again after a rest, in the middle of a quiet time."""
    monkeypatch.setattr(stream_reader, "REST_S", 0.0)

    class SlowPlanner(QuietPlanner):
        def show_progress(self, group: str, offsets: Offsets) -> None:
            clock.sleep(2.0)
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer")

    monkeypatch.setattr(stream_reader, "Planner", SlowPlanner)
    reader = quiet_reader(**{"kafka.group.id": "watchers"})
    for _ in range(3):
        began = clock.now
        reader.latestOffset({"t": {"0": 5}}, ReadAllAvailable())
        assert clock.now - began == pytest.approx(ROUND_S + 2.0)


def test_the_reader_of_a_stream_answers_at_once_behind_sparks_plan_of_a_batch(
    clock: SleptClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "Planner", QuietPlanner)
    reader = quiet_reader()
    start = {"t": {"0": 5}}
    took = []
    for is_planned in (False, True, True, False):
        if is_planned:
            reader.commit(start)
        began = clock.now
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        took.append(clock.now - began)
    assert took == [ROUND_S, 0.0, 0.0, ROUND_S]
