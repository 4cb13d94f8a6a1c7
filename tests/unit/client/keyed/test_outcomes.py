"""The outcomes of a handler, and the pauses after its failures."""

from typing import Any

import pytest

from tailrace.client.keyed.outcomes import Done, Retry, Skip, outcome_of, pause_ms


@pytest.mark.parametrize("outcome", [Done(), Retry(), Retry(2.5), Retry(0), Skip("a duplicate")], ids=repr)
def test_an_outcome_stands_for_itself(outcome: Any) -> None:
    assert outcome_of(outcome) is outcome


def test_no_result_is_done() -> None:
    assert outcome_of(None) == Done()


@pytest.mark.parametrize("wrong", [True, Retry, "done", 75], ids=repr)
def test_another_result_is_a_mistake_of_the_handler(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"a handler returns None, Done\(\), Retry\(\) or Skip\(\), not "):
        outcome_of(wrong)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_a_retry_has_a_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds, 0 or more"):
        Retry(seconds)


def test_pauses_double_up_to_a_minute() -> None:
    assert [pause_ms(failures) for failures in range(1, 9)] == [
        1_000,
        2_000,
        4_000,
        8_000,
        16_000,
        32_000,
        60_000,
        60_000,
    ]
    assert pause_ms(1_000_000) == 60_000
