"""Fair turns: which connection is served next when many connections have requests at hand.

One turn of a connection is bounded (`net.turns.COSTLY_SECONDS`), but a hundred connections may each have a turn between
two looks at the sockets: a request of another client, which needs a few rounds, would wait for a hundred turns per
round. So the turns of a round share 5 ms, and connections with bytes that come later wait for a later round. The
waiting connection that has had the least time comes first (fair queueing): in virtual time, a turn starts when the
connection's last turn has ended or, without a recent turn, now, and the turn is expected to take as long as the last
turn. The connection with the earliest expected end is next. So a client with few and short requests is served next, and
many connections with endless requests share the rest of the time.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, Protocol

from tailrace.net.turns import Turns

ROUND_SECONDS: Final = 0.005
"""The time for turns of connections between two looks at the sockets. The last turn of a round may exceed this time."""
COUNTED_SECONDS: Final = 0.001
"""The most that a turn adds to the time of its connection. The end of the turn does not count: it writes bytes that
other turns have staged. A turn may be long by accident, or for one large record; if all of it counted, every other
connection would get as much time before this connection's next turn."""


class Served(Protocol):
    """A connection that has turns."""

    turn_ended: float
    """The end of the connection's last turn, in virtual seconds; only `FairTurns` writes this field."""
    turn_seconds: float
    """The length of the connection's last turn; only `FairTurns` writes this field."""

    def wait_for_turn(self) -> None:
        """`take_turn` comes later; until then, bytes may be received and no request is carried out."""
        ...

    def take_turn(self) -> None:
        """Carry out requests, in one turn."""
        ...


class FairTurns:
    """The turns of all connections of a node."""

    def __init__(self, turns: Turns, *, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._turns = turns
        self._call_soon = call_soon
        self._waiting: list[tuple[float, float, int, Served]] = []
        self._arrivals = 0
        self._is_planned = False
        self._seconds = 0.0
        """The time of all turns since the last round began: other connections had to wait for these turns."""
        self._now = 0.0
        """The latest start of a turn, in virtual seconds."""

    def __len__(self) -> int:
        """The number of connections that wait."""
        return len(self._waiting)

    def take(self, connection: Served) -> None:
        """Let the connection take a turn: now if the round has time left and no other connection waits, else later."""
        start = max(connection.turn_ended, self._now)
        if not self._waiting and self._seconds < ROUND_SECONDS:
            self._serve(start, connection)
            return
        connection.wait_for_turn()
        self._arrivals += 1
        heappush(self._waiting, (start + connection.turn_seconds, start, self._arrivals, connection))
        self._plan()

    def _serve(self, start: float, connection: Served) -> None:
        self._now = max(self._now, start)
        connection.take_turn()
        connection.turn_seconds = min(self._turns.work_seconds, COUNTED_SECONDS)
        connection.turn_ended = start + connection.turn_seconds
        self._seconds += self._turns.last_seconds

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            self._call_soon(self._next_round)

    def _next_round(self) -> None:
        self._is_planned = False
        self._seconds = 0.0
        waiting = self._waiting
        while waiting and self._seconds < ROUND_SECONDS:
            _, start, _, connection = heappop(waiting)
            self._serve(start, connection)
        if waiting:
            self._plan()
