"""The errors of a partition that is followed: pauses, refusals and failed stores."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick
from tailrace.replication.fetcher_events import EndWait, FetchAnswer, ReportRefusal, StoreFailed, Unfollow
from tailrace.replication.followed_partition import REFUSED_AFTER_MS, REPORTED_EVERY_MS
from tailrace.replication.replica_fetcher import FIRST_BACKOFF_MS
from unit.replication.fetching.fetcher_bench import A, B, ReplicaFetcherBench, error, records


def test_a_followed_partition_that_is_refused_ends_the_wait_of_the_fetch_when_its_pause_is_over() -> None:
    """A follower may know of a new topic before its leader does."""
    bench = ReplicaFetcherBench(A, B)
    bench.answer(error(B, ErrorCode.UNKNOWN_TOPIC_ID))
    assert bench.requested == [(A, 0)]
    assert bench.later(FIRST_BACKOFF_MS) == [EndWait()]
    bench.answer()
    assert bench.requested == [(A, 0), (B, 0)]


def test_a_followed_partition_that_is_refused_for_ever_is_reported_at_once_and_then_each_minute() -> None:
    bench = ReplicaFetcherBench(A)
    code = ErrorCode.OFFSET_OUT_OF_RANGE
    assert refuse(bench, code, for_ms=REFUSED_AFTER_MS - 1000) == []
    assert bench.machine.refused == 0
    (report,) = refuse(bench, code, for_ms=30_000)
    assert (report.key, report.error) == (A, code)
    assert REFUSED_AFTER_MS <= report.for_ms <= REFUSED_AFTER_MS + 1000
    assert bench.machine.refused == 1
    assert len(refuse(bench, code, for_ms=4 * REPORTED_EVERY_MS)) in (3, 4)


def test_the_pause_of_a_followed_partition_ends_with_the_leader_epoch_in_which_it_began() -> None:
    bench = ReplicaFetcherBench(A, B)
    bench.answer(error(A, ErrorCode.NOT_LEADER_OR_FOLLOWER), error(B, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    bench.follow(A, epoch=4)
    bench.step(Tick())
    bench.later(10)
    bench.answer(error(A, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert bench.machine.next_deadline_ms == 50
    bench.later(40)
    assert bench.requested == [(B, 0)]
    assert bench.machine.next_deadline_ms == 60
    bench.step(Unfollow(key=A))
    assert bench.machine.next_deadline_ms is None


def test_a_followed_partition_in_error_pauses_alone_and_ever_longer() -> None:
    bench = ReplicaFetcherBench(A, B)
    pauses = []
    for _ in range(7):
        bench.answer(error(A, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        assert [key for key, _ in bench.requested] == [B]
        until_ms = bench.machine.next_deadline_ms
        assert until_ms is not None
        pauses.append(until_ms - bench.now_ms)
        bench.later(until_ms - bench.now_ms)
        bench.answer()
        assert {key for key, _ in bench.requested} == {A, B}
    assert pauses == [50, 100, 200, 400, 800, 1000, 1000]
    bench.answer(records(A, 0))
    bench.stored(A, 0)
    bench.answer(error(A, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert bench.machine.next_deadline_ms == bench.now_ms + 50, "a success ends the series"
    assert bench.machine.failed_answers == 8


def refuse(bench: ReplicaFetcherBench, code: ErrorCode, *, for_ms: int) -> list[ReportRefusal]:
    """Answer every fetch of A like this for a while; the reports."""
    reports = []
    until_ms = bench.now_ms + for_ms
    while bench.now_ms < until_ms:
        bench.answer(error(A, code))
        reports += [effect for effect in bench.effects if isinstance(effect, ReportRefusal)]
        assert bench.machine.next_deadline_ms is not None
        bench.later(bench.machine.next_deadline_ms - bench.now_ms)
    return reports


def test_another_reason_is_another_refusal_of_a_followed_partition_and_a_good_answer_ends_it() -> None:
    bench = ReplicaFetcherBench(A)
    codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID] * 4
    assert [refuse(bench, code, for_ms=REFUSED_AFTER_MS - 1000) for code in codes] == [[]] * 8
    assert refuse(bench, ErrorCode.KAFKA_STORAGE_ERROR, for_ms=2 * REFUSED_AFTER_MS)
    assert bench.machine.refused == 1
    bench.answer(records(A, 0))
    assert bench.machine.refused == 0


@pytest.mark.parametrize("is_final", [True, False])
def test_a_failed_store_pauses_or_ends_the_followed_partition(is_final: bool) -> None:
    bench = ReplicaFetcherBench(A)
    bench.answer(records(A))
    bench.step(StoreFailed(key=A, leader_epoch=3, is_final=is_final))
    bench.later(1_000)
    assert bench.requested == ([] if is_final else [(A, 0)])
    assert bench.machine.broken == 1
    bench.follow(A, epoch=4)
    assert bench.machine.broken == 0


def test_a_followed_partition_that_cannot_be_stored_is_counted_and_lags() -> None:
    """The bytes of its leader are damaged, say: then it is asked again and again, and the copy falls behind."""
    bench = ReplicaFetcherBench(A)
    damaged = records(A, high_watermark=7)
    bench.answer(damaged)
    bench.step(StoreFailed(key=A, leader_epoch=3, is_final=False))
    assert (bench.machine.broken, bench.machine.max_lag) == (1, 7)
    bench.later(1_000)
    bench.answer(damaged)
    bench.step(StoreFailed(key=A, leader_epoch=3, is_final=False))
    assert (bench.machine.broken, bench.machine.max_lag) == (1, 7)
    bench.later(1_000)
    bench.answer(FetchAnswer(A, ErrorCode.NONE, 7, 0, b""))  # also what brings no records is taken over again
    bench.stored(A, 7)
    assert (bench.machine.broken, bench.machine.max_lag) == (0, 0)
