"""A fetch of many partitions is made in steps: between two of them anything may happen."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Change
from tailrace.server.callbacks import run_slice
from tailrace.server.ports import Clock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, Exchange
from testkit.nodes.ports import RecordingConnection
from testkit.nodes.session_reader import SessionReader, answers, numbers

ALL = dict.fromkeys(range(6), 0)
Step = Callable[[], object]


class LongFetchBench:
    """A node on which each step is a turn, and more than one partition are many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = DataPath("/logs", files=SimulatedDisk())
        for number in ALL:
            self.node.create(partition=number)
        self.between: list[Step] = []
        """Called between the steps, after each step."""
        self.steps = 0
        for module in ("fetch", "sessions", "waiting"):
            monkeypatch.setattr(f"tailrace.server.fetch.{module}.FEW", 1)
        monkeypatch.setattr("tailrace.server.fetch.reading._SLICE", 1)
        monkeypatch.setattr("tailrace.server.slices.run_slice", self._run_step)
        self.reader = SessionReader(self.node)

    def _run_step(self, steps: Iterator[object], clock: Clock) -> bool:
        is_over = next(steps, self) is self
        self.steps += 1
        if self.between and not is_over:
            self.between.pop(0)()
        return is_over

    def append(self, number: int) -> None:
        """Append a record and commit it."""
        partition = self.node.table.get("orders", number)
        self.node.produce("orders", b"a", partition=number, same_turn=True)
        self.node.table.write_staged()
        assert partition.log.log_end_offset

    def before_step(self, number: int, step: Step) -> None:
        """Have this called when so many steps have been made."""
        self.between = [lambda: None] * (number - 1) + [step]

    @property
    def watchers(self) -> int:
        found = [self.node.table.get("orders", number).replica.watchers for number in ALL]
        return sum(len(watchers._kinds) for watchers in found if watchers is not None)

    def begin(self, has_session: bool = True) -> None:
        """Open a session and let it rest, or prepare fetches without a session."""
        if has_session:
            self.reader.open(ALL)
            self.reader.next()
        else:
            self.reader.epoch = -1


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> LongFetchBench:
    return LongFetchBench(monkeypatch)


def test_a_long_fetch_takes_many_turns_and_its_connection_has_no_other_request_meanwhile(bench: LongFetchBench) -> None:
    suspended: list[bool] = []
    connection = bench.reader.connection
    bench.between = [lambda: suspended.append(connection.is_suspended)] * 100
    assert numbers(bench.reader.open(ALL)) == [*ALL]
    assert len(suspended) >= 2 * len(ALL)
    assert all(suspended)
    assert not connection.is_suspended
    suspended.clear()
    assert bench.reader.next() == []
    assert len(suspended) >= len(ALL)
    suspended.clear()
    assert bench.reader.next() == []
    assert suspended == [], "all is clean: nothing is long"


@pytest.mark.parametrize("step", range(1, 14))
def test_a_record_that_comes_between_two_steps_is_in_this_answer_or_in_the_next(
    bench: LongFetchBench, step: int
) -> None:
    bench.begin()
    bench.append(5)
    bench.before_step(step, lambda: bench.append(1))
    found = numbers(bench.reader.next({0: 0, 2: 0}))
    if bench.between:  # the pass had fewer steps
        bench.append(1)
    bench.node.end_turn()
    found += numbers(bench.reader.next({5: 1}))
    assert sorted({*found}) == [1, 5]


@pytest.mark.parametrize("has_session", [True, False])
@pytest.mark.parametrize("step", range(1, 20))
def test_a_record_that_comes_in_the_pass_before_a_wait_ends_the_wait(
    bench: LongFetchBench, step: int, has_session: bool
) -> None:
    bench.begin(has_session)
    bench.before_step(step, lambda: bench.append(1))
    waiting = bench.reader.send(ALL, max_wait_ms=500)
    if bench.between:
        assert not waiting.is_answered
        bench.append(1)
        bench.node.end_turn()
    found = answers(waiting.response)
    assert [data.partition_index for data in found if data.records] == [1]


@pytest.mark.parametrize("has_session", [True, False])
@pytest.mark.parametrize("step", range(1, 10))
def test_a_fetch_whose_time_is_over_in_the_pass_is_answered_once(
    bench: LongFetchBench, step: int, has_session: bool
) -> None:
    bench.begin(has_session)
    before = bench.watchers
    bench.before_step(step, bench.node.polls.answer_all)
    waiting = bench.reader.send(ALL, max_wait_ms=500)
    bench.node.clock.advance(500)
    assert numbers(answers(waiting.response)) == ([] if has_session else [*ALL])
    assert (len(bench.node.polls), len(bench.node.deadlines)) == (0, 0)
    assert bench.watchers == before


@pytest.mark.parametrize("has_session", [True, False])
@pytest.mark.parametrize("step", range(1, 12))
def test_a_connection_that_closes_in_the_pass_leaves_nothing_but_the_session(
    bench: LongFetchBench, step: int, has_session: bool
) -> None:
    bench.begin(has_session)
    before = bench.watchers
    bench.before_step(step, bench.reader.connection.hang_up)
    waiting = bench.reader.send(ALL, max_wait_ms=500)
    bench.reader.connection.hang_up()
    assert not waiting.is_answered
    assert (len(bench.node.polls), len(bench.node.broker.slices), bench.watchers) == (0, 0, before)
    assert not any(session.is_busy for session in bench.node.broker.fetch_sessions.cache.sessions())


@pytest.mark.parametrize("step", range(1, 20))
def test_a_session_that_loses_its_slot_in_the_pass_is_answered_without_one(bench: LongFetchBench, step: int) -> None:
    bench.begin()
    bench.append(3)
    (session,) = bench.node.broker.fetch_sessions.cache.sessions()
    bench.before_step(step, lambda: bench.node.broker.fetch_sessions.cache.remove(session))
    response = bench.reader.send(ALL).response
    assert (response.error_code, response.session_id != 0) == (0, bool(bench.between))
    assert [data.partition_index for data in answers(response) if data.records] == [3]
    assert bench.watchers == (len(ALL) if bench.between else 0)


@pytest.mark.parametrize("step", range(1, 10))
def test_another_request_of_the_session_waits_for_the_pass(bench: LongFetchBench, step: int) -> None:
    bench.begin()
    bench.append(3)
    second: list[Exchange] = []

    def send_again() -> None:
        bench.reader.epoch += 1
        bench.reader.connection = RecordingConnection()
        second.append(bench.reader.send({3: 1}, same_turn=True))

    bench.before_step(step, send_again)
    first = bench.reader.send(ALL)
    assert numbers(answers(first.response)) == [3]
    assert answers(second[0].response) == []


def test_a_fault_in_a_later_turn_is_an_error_and_ends_the_session(
    bench: LongFetchBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.begin()

    def broken(*args: Any) -> Any:
        raise RuntimeError("a fault of this program")

    bench.before_step(8, lambda: monkeypatch.setattr(Partition, "is_read_up_to", broken))
    with pytest.raises(RuntimeError):
        bench.reader.send(ALL)
    bench.node.end_turn()
    assert len(bench.node.broker.fetch_sessions.cache) == 0
    assert not bench.reader.connection.is_suspended
    (answer,) = [answer for slot, answer in bench.reader.connection.answers.items() if slot == 2]
    assert answer is not None
    assert ErrorCode.UNKNOWN_SERVER_ERROR.to_bytes(2, "big", signed=True) in answer


def test_sessions_that_have_gone_end_their_watches_in_steps_all_together(
    bench: LongFetchBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SessionReader(bench.node)
    for reader in (bench.reader, other):
        reader.open(ALL)
        reader.next()
    assert bench.watchers == 2 * len(ALL)
    later: list[Iterator[object]] = []
    monkeypatch.setattr("tailrace.server.fetch.sessions.run_in_slices", lambda steps, _: later.append(steps))
    for session in tuple(bench.node.broker.fetch_sessions.cache.sessions()):
        bench.node.broker.fetch_sessions.cache.remove(session)
    (steps,) = later
    left = [bench.watchers for _ in steps]
    assert left == [*reversed(range(2 * len(ALL)))]


def test_many_partitions_are_forgotten_in_steps(bench: LongFetchBench) -> None:
    bench.begin()
    before = bench.steps
    assert bench.reader.next(forgotten=[1, 2, 3, 4, 5]) == []
    assert bench.steps - before >= 5
    assert bench.watchers == 1
    for number in (0, 1):
        bench.append(number)
    bench.node.end_turn()
    assert numbers(bench.reader.next()) == [0]


def test_rows_and_sequences_come_in_portions() -> None:
    from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
    from tailrace.protocol.rows import Rows, portions
    from tailrace.protocol.schema import decode, encode_bytes

    wanted = tuple(FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1) for n in range(100))
    topics = (FetchTopic(topic="t", partitions=wanted),)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=topics)
    decoded = decode(FetchRequest, 12, encode_bytes(request, 12)).topics[0].partitions
    assert isinstance(decoded, Rows)
    for structs in (wanted, decoded):
        taken: list[Sequence[FetchPartition]] = list(portions(structs, 40))
        assert [len(portion) for portion in taken] == [40, 40, 20]
        assert [partition.partition for portion in taken for partition in portion] == list(range(100))


@pytest.mark.parametrize("has_session", [True, False])
@pytest.mark.parametrize("event", ["expires", "wakes again", "hangs up", "sends another"])
def test_a_pass_that_waits_for_its_first_slice_is_answered_once(
    bench: LongFetchBench, has_session: bool, event: str
) -> None:
    other, reader = SessionReader(bench.node), bench.reader
    if has_session:
        reader.open(ALL)
        reader.next()
        reader.next()
    else:
        reader.epoch = -1
    waiting: list[Exchange] = [reader.send(ALL if not has_session else {}, max_wait_ms=500)]
    assert not waiting[0].is_answered

    def wake() -> None:
        for number in ALL:
            bench.node.table.get("orders", number).notify(Change.ROLE)
        bench.node.polls._retry_woken()

    def interfere() -> None:
        bench.append(3)
        wake()
        if event == "expires":
            bench.node.polls.answer_all()
        elif event == "wakes again":
            wake()
        elif event == "hangs up":
            reader.connection.hang_up()
        else:
            reader.epoch += has_session
            waiting.append(reader.send(ALL, same_turn=True))

    bench.before_step(2, lambda: bench.node.clock.call_soon(interfere))
    other.open(ALL)
    bench.node.clock.advance(500)
    bench.node.end_turn()
    assert [exchange.is_answered for exchange in waiting] == [event != "hangs up"] * len(waiting)
    assert (len(bench.node.polls), len(bench.node.deadlines), len(bench.node.broker.slices)) == (0, 0, 0)
    assert not any(session.is_busy for session in bench.node.broker.fetch_sessions.cache.sessions())
    assert not reader.connection.is_suspended


def test_a_full_fetch_whose_time_is_over_before_its_first_slice_is_answered_once(bench: LongFetchBench) -> None:
    bench.reader.epoch = -1
    second: list[Exchange] = []

    def send() -> None:
        second.append(bench.reader.send(ALL, max_wait_ms=500, same_turn=True))
        bench.append(5)
        bench.node.polls.answer_all()

    bench.before_step(2, lambda: bench.node.clock.call_soon(send))
    SessionReader(bench.node).open(ALL)
    bench.node.clock.advance(500)
    assert numbers(answers(second[0].response)) == [*ALL]


def test_a_request_that_waits_for_another_of_its_session_takes_no_whole_slices(bench: LongFetchBench) -> None:
    bench.begin()
    (session,) = bench.node.broker.fetch_sessions.cache.sessions()
    bench.append(3)
    taken: list[bool] = []

    def take_slice(steps: Iterator[object], clock: Clock) -> bool:
        taken.append(run_slice(steps, clock))
        session.is_busy = False  # the other request is over
        return taken[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tailrace.server.slices.run_slice", take_slice)
        session.is_busy = True
        exchange = bench.reader.send(ALL)
    assert taken == [False, True]
    assert numbers(answers(exchange.response)) == [3]
