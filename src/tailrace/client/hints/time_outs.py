"""The time-outs of calls, in seconds or in milliseconds: other clients have either."""

from numbers import Real


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


def _number(value: object, what: str, form: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:
        raise TypeError(f"{what} {value!r}; say {form}")
    return float(value)
