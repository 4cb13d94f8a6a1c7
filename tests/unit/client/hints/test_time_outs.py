"""The time-outs of calls: numbers of seconds or milliseconds, and a clear refusal of anything else."""

from typing import Any

import pytest

from tailrace import Consumer, Producer
from tailrace.client.hints.time_outs import poll_seconds, seconds_of


def test_milliseconds_count_before_seconds() -> None:
    assert seconds_of(2, 500, call="close") == 0.5
    assert seconds_of(2, call="close") == 2.0
    assert seconds_of(None, call="close") is None
    assert poll_seconds(1.5, None) == 1.5


@pytest.mark.parametrize("timeout", ["1", None, True, float("nan"), [1]])
def test_poll_refuses_a_time_that_is_no_number(timeout: Any) -> None:
    """`"1" * 1000` would be a wait for ever."""
    with (
        Consumer("127.0.0.1:1", topics=["t"]) as consumer,
        pytest.raises(TypeError, match="^poll: timeout .*; say seconds as a number"),
    ):
        consumer.poll(timeout)


def test_the_argument_that_is_wrong_is_named() -> None:
    text: Any = "500"
    with Consumer("127.0.0.1:1", topics=["t"]) as consumer:
        with pytest.raises(TypeError, match="poll: timeout_ms '500'; say milliseconds as a number"):
            consumer.poll(timeout_ms=text)
        with pytest.raises(TypeError, match="close: timeout '500'"):
            consumer.close(text)
    with Producer("127.0.0.1:1") as producer, pytest.raises(TypeError, match="close: timeout_ms '500'"):
        producer.close(timeout_ms=text)
