"""The reasons why a connection takes no frame now."""

from typing import Final


class Pause:
    """The reasons why a connection takes no frame now, as bits: there may be several at once.

    Plain ints, not an IntFlag: pauses are tested several times per request.
    """

    CLOSED: Final = 1
    FAIRNESS: Final = 2
    """The connection has had its share of this turn."""
    IN_FLIGHT: Final = 4
    """Too many requests are not answered yet."""
    SLOW_READER: Final = 8
    """The client does not take its answers."""
    MEMORY: Final = 16
    """The frame does not fit into the memory that all receive buffers may use."""
    TOO_EARLY: Final = 32
    """The connection exceeded the rate of new connections; the node reads from the connection later."""
    STOPPING: Final = 64
    """The node is about to stop."""
    OUT_OF_ORDER: Final = 128
    """Large answers wait for an earlier answer."""
    BUSY: Final = 256
    """A request is carried out in slices."""
    THROTTLED: Final = 1024
    """A quota of the client is used up."""
    QUEUED: Final = 512
    """The connection waits for its turn behind connections that have had less time."""
