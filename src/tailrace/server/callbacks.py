"""Callbacks of several: a fault in one of them does not hold back the others.

A failed assertion is a broken invariant: it ends the round at once, and the process with it.
"""

import logging
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_logger = logging.getLogger("tailrace.server")


def call_each(action: Callable[[T], object], subjects: Iterable[T]) -> None:
    """Do this for each, in their order. Raises the first fault when all have had their turn; the others are logged."""
    first: Exception | None = None
    for subject in subjects:
        fault = _fault_of(action, subject)
        if first is not None and fault is not None:
            _log("callback-failed", action, fault)
        first = first or fault
    if first is not None:
        raise first


def call_safely(event: str, callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call this; a fault is logged as `event`, and ends here."""
    fault = _fault_of(callback, *args, **kwargs)
    if fault is not None:
        _log(event, callback, fault)


def _fault_of(callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Exception | None:
    try:
        callback(*args, **kwargs)
    except AssertionError:
        raise
    except Exception as fault:  # noqa: BLE001 - logged or raised by the caller
        return fault
    return None


def _log(event: str, callback: Callable[..., object], fault: Exception) -> None:
    _logger.error("event=%s callback=%r", event, callback, exc_info=fault)
