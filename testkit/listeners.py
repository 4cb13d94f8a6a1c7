"""Listeners of tests, with the limits that a node has without settings, and their turns and receive buffers."""

import asyncio
from collections.abc import Callable

from tailrace.net.buffers import SMALLEST, BufferPool, ByteBuffer
from tailrace.net.fair_turns import FairTurns
from tailrace.net.limits import ListenerLimits
from tailrace.net.listener import Listener, OnFrame, arrivals_within
from tailrace.net.turns import Turns


def default_listener(name: str, *, turns: Turns, on_frame: OnFrame) -> Listener:
    """A listener with a pool of receive buffers and a rate of new connections of its own."""
    limits = ListenerLimits()
    pool = BufferPool(limit_bytes=256 << 20)
    return Listener(
        name=name,
        turns=turns,
        fair_turns=FairTurns(turns, call_soon=asyncio.get_running_loop().call_soon),
        on_frame=on_frame,
        pool=pool,
        limits=limits,
        arrivals=arrivals_within(limits),
    )


def silent_turns(
    *,
    call_soon: Callable[[Callable[[], None]], object],
    on_broken_invariant: Callable[[BaseException], None],
    now: Callable[[], float] = lambda: 0.0,
) -> Turns:
    """Turns that report no stall. Without a clock none is long, so that a busy machine changes no order."""
    return Turns(
        call_soon=call_soon, on_broken_invariant=on_broken_invariant, on_stall=lambda work, seconds: None, now=now
    )


class PoisonedBufferPool(BufferPool):
    """A pool whose buffers come overwritten: code that kept a position instead of a view reads nonsense at once."""

    def draw(self, size_bytes: int = SMALLEST, *, in_the_end: int = 0) -> ByteBuffer | None:
        buffer = super().draw(size_bytes, in_the_end=in_the_end)
        if buffer is not None:
            buffer[:] = b"\xdb" * len(buffer)
        return buffer
