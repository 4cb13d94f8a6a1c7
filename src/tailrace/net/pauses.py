"""Reasons for a connection to take no frame for now. Plain ints, not an IntFlag: they are tested at each request."""

from typing import Final


class Pause:
    """The reasons, as bits: there may be several at once."""

    CLOSED: Final = 1
    FAIRNESS: Final = 2
    """It has had its share of this turn."""
    IN_FLIGHT: Final = 4
    """Too many of its requests are not answered yet."""
    SLOW_READER: Final = 8
    """It does not take its answers."""
    MEMORY: Final = 16
    """Its frame does not fit into the memory that all receive buffers may use."""
    TOO_EARLY: Final = 32
    """It came while too many came; it is listened to later."""
    OUT_OF_ORDER: Final = 128
    """Large answers wait for one that must leave before them."""
    STOPPING: Final = 64
    """The node is about to stop."""
