"""The time-outs of calls, in seconds or in milliseconds: other clients have either."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from numbers import Real
from typing import Final

_LIKE_MILLISECONDS: Final = 100
"""The least whole number of seconds that may be meant as milliseconds: `poll(100)`, `poll(1000)` of other clients."""
SILENCE_S: Final = 10.0
"""The time without a record after which a poll warns of a time-out that may be meant as milliseconds."""

_logger = logging.getLogger("tailrace.client")


def seconds_of(timeout: float | None, timeout_ms: float | None = None, *, call: str) -> float | None:
    """The time-out in seconds: `timeout_ms`, which counts before `timeout`. None: the call has no time-out.

    Raises TypeError that names the call and the argument for anything but a number, also for `"1"`: a text times 1,000
    would be a wait for ever.
    """
    if timeout_ms is not None:
        return _number(timeout_ms, f"{call}: timeout_ms", "milliseconds as a number, such as timeout_ms=1000") / 1000
    return None if timeout is None else _number(timeout, f"{call}: timeout", "seconds as a number, such as timeout=1.0")


def poll_seconds(timeout: float, timeout_ms: float | None) -> float:
    """The longest wait of `poll`, in seconds. Raises TypeError as `seconds_of`, and for None."""
    wait_s = seconds_of(timeout, timeout_ms, call="poll")
    if wait_s is None:
        raise TypeError("poll: timeout None; say seconds as a number, or wait without end in `for record in consumer`")
    return wait_s


@contextmanager
def doubted_seconds(timeout: float, timeout_ms: float | None) -> Iterator[None]:
    """The time of a poll: warns when a time-out that may be meant as milliseconds has kept the poll waiting.

    A poll with records never warns, nor does a time-out with a decimal point. A process warns once of each number.
    """
    if timeout_ms is not None or not isinstance(timeout, int) or timeout < _LIKE_MILLISECONDS:
        yield
        return
    timer = asyncio.get_running_loop().call_later(SILENCE_S, _doubt, timeout)
    try:
        yield
    finally:
        timer.cancel()


@cache
def _doubt(timeout: int) -> None:
    _logger.warning(
        "poll(%d) has waited %g s without a record, and waits up to %d s: the time-out is in seconds; for milliseconds"
        " say poll(timeout_ms=%d)",
        timeout,
        SILENCE_S,
        timeout,
        timeout,
    )


def _number(value: object, what: str, form: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:
        raise TypeError(f"{what} {value!r}; say {form}")
    return float(value)
