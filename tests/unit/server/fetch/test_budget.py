import pytest

from tailrace.protocol.messages.fetch import FetchRequest
from tailrace.server.fetch.budget import DEFAULT_FETCH_MAX_BYTES, MAX_WAIT_MS, FetchBudget, wait_ms, wanted_bytes


def test_a_partition_gets_the_smaller_of_its_own_limit_and_what_is_left() -> None:
    budget = FetchBudget(request_max_bytes=100, fetch_max_bytes=DEFAULT_FETCH_MAX_BYTES)
    assert budget.limit_for(60) == 60
    budget.spend(60)
    assert budget.limit_for(60) == 40
    budget.spend(40)
    assert budget.limit_for(60) == 0


def test_only_the_first_partition_that_has_anything_may_exceed_the_limits() -> None:
    budget = FetchBudget(request_max_bytes=100, fetch_max_bytes=DEFAULT_FETCH_MAX_BYTES)
    budget.spend(0)
    assert budget.min_one_message
    budget.spend(500)
    assert not budget.min_one_message
    assert budget.limit_for(60) == 0


def test_a_batch_that_does_not_fit_into_what_is_left_ends_the_answer() -> None:
    budget = FetchBudget(request_max_bytes=100, fetch_max_bytes=DEFAULT_FETCH_MAX_BYTES)
    budget.spend(60)
    budget.leave_out(40)
    assert budget.limit_for(60) == 0


def test_a_batch_that_is_too_large_for_its_partitions_own_limit_leaves_the_rest_to_the_others() -> None:
    budget = FetchBudget(request_max_bytes=100, fetch_max_bytes=DEFAULT_FETCH_MAX_BYTES)
    budget.spend(60)
    budget.leave_out(39)
    assert budget.limit_for(60) == 40


@pytest.mark.parametrize("limit", [-1, -(2**31), 0])
def test_a_limit_below_one_still_lets_one_batch_through(limit: int) -> None:
    budget = FetchBudget(request_max_bytes=limit, fetch_max_bytes=DEFAULT_FETCH_MAX_BYTES)
    assert (budget.limit_for(limit), budget.limit_for(100), budget.min_one_message) == (0, 0, True)


def test_the_brokers_limit_caps_the_requests() -> None:
    assert FetchBudget(request_max_bytes=2**31 - 1, fetch_max_bytes=1000).limit_for(2**31 - 1) == 1000


def test_an_early_answer_never_waits_for_more_than_an_answer_can_have() -> None:
    request = FetchRequest(max_wait_ms=500, min_bytes=5000, max_bytes=1000, topics=())
    assert wanted_bytes(request, fetch_max_bytes=DEFAULT_FETCH_MAX_BYTES) == 1000
    assert wanted_bytes(request, fetch_max_bytes=10) == 10


@pytest.mark.parametrize(("asked_ms", "given_ms"), [(-1, 0), (0, 0), (500, 500), (2**31 - 1, MAX_WAIT_MS)])
def test_the_wait_is_bounded(asked_ms: int, given_ms: int) -> None:
    assert wait_ms(FetchRequest(max_wait_ms=asked_ms, min_bytes=1, topics=())) == given_ms
