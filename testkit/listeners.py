"""Listeners of tests: with the limits that a node has without settings."""

from tailrace.net.buffers import BufferPool
from tailrace.net.limits import ListenerLimits
from tailrace.net.listener import Listener, OnFrame, arrivals_within
from tailrace.net.turns import Turns


def default_listener(name: str, *, turns: Turns, on_frame: OnFrame) -> Listener:
    """A listener with a pool of receive buffers and a rate of new connections of its own."""
    limits = ListenerLimits()
    pool = BufferPool(limit_bytes=256 << 20)
    return Listener(
        name=name, turns=turns, on_frame=on_frame, pool=pool, limits=limits, arrivals=arrivals_within(limits)
    )
