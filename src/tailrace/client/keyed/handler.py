"""The handler of a keyed consumer: kinds of handlers, their names, and the text of their failures."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from traceback import TracebackException
from typing import Any, Final

from tailrace.client.keyed.outcomes import KeyedRecord, Outcome

Handler = Callable[[KeyedRecord], Awaitable[Outcome | None] | Outcome | None]

_SHOWN_CHARS: Final = 200


def is_coroutine_handler(handler: Handler) -> bool:
    """Whether the handler is a coroutine function, or an object whose call is a coroutine function."""
    return any(map(inspect.iscoroutinefunction, (handler, type(handler).__call__)))


def name_of(handler: Handler) -> str:
    """The name of the handler for messages: of its function, or of its class."""
    function = getattr(handler, "func", handler)  # of functools.partial
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def fault_text(fault: BaseException) -> str:
    """The exception in a few words. The text may be empty: its `__str__` is code of users too."""
    text = TracebackException(type(fault), fault, None, lookup_lines=False, compact=True)
    return f"{type(fault).__name__}: {text}"[:_SHOWN_CHARS]


def ends_program(fault: BaseException) -> bool:
    """Whether the exception of a handler ends the run: it is neither a failure nor a cancellation."""
    return not isinstance(fault, Exception | asyncio.CancelledError)


async def within(awaitable: Awaitable[object], limit_ms: int | None, began: float | None = None) -> object:
    """The result of the awaitable, which began at this time of the loop; None: now. Raises TimeoutError when the
    awaitable was cancelled at the limit."""
    if limit_ms is None:
        return await awaitable
    if began is None:
        began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(began + limit_ms / 1000) as limit:
            return await awaitable
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(f"beyond handler_timeout_ms {limit_ms}") from None
        raise


async def cancelled(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel these tasks, and await their end."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
