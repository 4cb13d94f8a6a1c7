"""The time-outs of calls: numbers of seconds or milliseconds, and a clear refusal of anything else."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tailrace import Consumer, Producer, aio
from tailrace.client.hints import time_outs
from tailrace.client.hints.time_outs import poll_seconds, seconds_of
from unit.client.new_topics import new_topic


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


async def _silent_poll(servers: str, topic: str, *args: Any, **keywords: Any) -> None:
    """Poll an empty topic until the first silence is over."""
    async with aio.Consumer(servers, topics=[topic]) as consumer:
        poll = asyncio.create_task(consumer.poll(*args, **keywords))
        is_over = asyncio.Event()
        asyncio.get_running_loop().call_later(2 * time_outs.SILENCE_S, is_over.set)
        await is_over.wait()
        poll.cancel()
        with suppress(asyncio.CancelledError):
            await poll


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_outs, "SILENCE_S", 0.01)
    time_outs._doubt.cache_clear()


@pytest.mark.usefixtures("short_silence")
def test_a_silent_poll_of_1000_seconds_names_milliseconds_once(
    tailrace_cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    servers, topic = tailrace_cluster.bootstrap_servers, new_topic(tailrace_cluster)
    for _ in range(2):
        asyncio.run(_silent_poll(servers, topic, 1000))
    asyncio.run(_silent_poll(servers, topic, 200))
    doubts = [record.getMessage() for record in caplog.records if "time-out" in record.getMessage()]
    assert len(doubts) == 2
    assert doubts[0].startswith("poll(1000) has waited")
    assert doubts[0].endswith("the time-out is in seconds; for milliseconds say poll(timeout_ms=1000)")


@pytest.mark.usefixtures("short_silence")
@pytest.mark.parametrize(
    ("args", "keywords"), [((99,), {}), ((1000.0,), {}), ((), {"timeout_ms": 100_000})], ids=["99", "1000.0", "ms"]
)
def test_a_plain_time_out_is_not_doubted(
    tailrace_cluster: Any, caplog: pytest.LogCaptureFixture, args: Any, keywords: Any
) -> None:
    asyncio.run(_silent_poll(tailrace_cluster.bootstrap_servers, new_topic(tailrace_cluster), *args, **keywords))
    assert "time-out is in seconds" not in caplog.text
