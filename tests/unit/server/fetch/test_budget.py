import pytest

from tailrace.protocol.messages.fetch import FetchRequest
from tailrace.server.fetch.budget import DEFAULT_FETCH_MAX_BYTES, MAX_WAIT_MS, FetchBudget, FetchLimits


def limits(
    fetch_max_bytes: int = DEFAULT_FETCH_MAX_BYTES,
    *,
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    max_bytes: int = 1_000_000,
) -> FetchLimits:
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, topics=())
    return FetchLimits(request, fetch_max_bytes)


def test_a_partition_gets_the_smaller_of_its_own_limit_and_what_is_left() -> None:
    budget = FetchBudget(100)
    assert budget.limit_for(60) == 60
    budget.spend(60)
    assert budget.limit_for(60) == 40
    budget.spend(40)
    assert budget.limit_for(60) == 0


def test_only_the_first_partition_that_has_anything_may_exceed_the_limits() -> None:
    budget = FetchBudget(100)
    budget.spend(0)
    assert budget.min_one_message
    budget.spend(500)
    assert not budget.min_one_message
    assert budget.limit_for(60) == 0


def test_a_batch_that_does_not_fit_into_what_is_left_ends_the_answer() -> None:
    budget = FetchBudget(100)
    budget.spend(60)
    budget.leave_out(40)
    assert budget.limit_for(60) == 0


def test_a_batch_that_is_too_large_for_its_partitions_own_limit_leaves_the_rest_to_the_others() -> None:
    budget = FetchBudget(100)
    budget.spend(60)
    budget.leave_out(39)
    assert budget.limit_for(60) == 40


@pytest.mark.parametrize("limit", [-1, -(2**31), 0])
def test_a_limit_below_one_still_lets_one_batch_through(limit: int) -> None:
    budget = FetchBudget(limits(max_bytes=limit).max_bytes)
    assert (budget.limit_for(limit), budget.limit_for(100), budget.min_one_message) == (0, 0, True)


def test_the_brokers_limit_of_a_fetch_caps_the_requests() -> None:
    assert limits(1000, max_bytes=2**31 - 1).max_bytes == 1000


def test_an_early_answer_never_waits_for_more_than_an_answer_can_have() -> None:
    assert limits(min_bytes=5000, max_bytes=1000).wanted_bytes == 1000
    assert limits(10, min_bytes=5000, max_bytes=1000).wanted_bytes == 10


@pytest.mark.parametrize(("asked_ms", "given_ms"), [(-1, 0), (0, 0), (500, 500), (2**31 - 1, MAX_WAIT_MS)])
def test_the_wait_of_a_fetch_is_bounded(asked_ms: int, given_ms: int) -> None:
    assert limits(max_wait_ms=asked_ms).wait_ms == given_ms


@pytest.mark.parametrize("options", [{"max_wait_ms": 0}, {"max_wait_ms": -1}, {"min_bytes": 0}, {"max_bytes": 0}])
def test_a_fetch_without_time_or_bytes_to_wait_for_does_not_wait(options: dict[str, int]) -> None:
    assert limits().may_wait
    assert not limits(**options).may_wait
