"""The tasks of asyncio clients that run on while nothing else holds their client.

An event loop holds its tasks weakly. A client that is dropped without `close` would be collected with its tasks, in the
middle of their work: asyncio says "Task was destroyed but it is pending", and records are lost.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

_kept: "set[asyncio.Task[None]]" = set()


def kept_task(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """A task on the running loop, held until its end."""
    task = asyncio.get_running_loop().create_task(work)
    _kept.add(task)
    task.add_done_callback(_kept.discard)
    return task


async def end_tasks(tasks: Iterable["asyncio.Task[None] | None"]) -> None:
    """Cancel these tasks, and await their ends."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
