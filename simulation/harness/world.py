"""Time, order and chance of a simulation: every event is in one queue, every random choice in one seed."""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import count
from typing import TypeVar

T = TypeVar("T")

Action = Callable[[], None]

_MASK = (1 << 64) - 1


class Life:
    """The time from the start of a host to its crash. Actions that are scheduled for a life that has ended do not
    happen."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


class World:
    """The same seed gives the same run, event by event.

    A draw depends on the seed and on its purpose (`stream` and `key`), not on the time or on earlier draws: if one
    event is left out of a run, the draws of all other events stay as they were. So a failing run can be made smaller.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_ms = 0
        self.events = 0
        self.sometimes: Counter[str] = Counter()
        """The number of times that each expected state was reached."""
        self.after_event: list[Action] = []
        """Called after every event: invariants."""
        self.notes: list[str] = []
        """Notable events, with their times: the trace of a run."""
        self._queue: list[tuple[int, int, Life | None, Action]] = []
        self._order = count()
        self._draws: dict[tuple[str, object], int] = {}

    # Chance

    def draw(self, stream: str, key: object) -> float:
        """A number from 0 up to, but without, 1: the next number of this stream for this key."""
        name = (stream, key)
        state = self._draws.get(name)
        if state is None:
            text = f"{self.seed}|{stream}|{key}".encode()
            state = int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
        state = (state + 0x9E3779B97F4A7C15) & _MASK  # SplitMix64: a counter, well mixed
        self._draws[name] = state
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)

    def chance(self, rate: float, stream: str, key: object) -> bool:
        """True at this rate."""
        return rate > 0 and self.draw(stream, key) < rate

    def between(self, low: int, high: int, stream: str, key: object) -> int:
        """An integer from `low` to `high`, both included."""
        return low + int(self.draw(stream, key) * (high - low + 1))

    def choice(self, options: Sequence[T], stream: str, key: object) -> T:
        return options[int(self.draw(stream, key) * len(options))]

    # Time

    def note(self, text: str) -> None:
        """Add this text to the trace."""
        self.notes.append(f"{self.now_ms:6} ms  {text}")

    def after(self, delay_ms: int, action: Action, life: Life | None = None) -> None:
        """Do this after so many ms, unless this life has ended by then."""
        heapq.heappush(self._queue, (self.now_ms + max(delay_ms, 0), next(self._order), life, action))

    def run(self, *, until_ms: int, max_events: int = 1_000_000, stop: Callable[[], bool] = lambda: False) -> bool:
        """Let events happen until this time; returns whether `stop` ended the run earlier."""
        while self._queue and self._queue[0][0] <= until_ms and self.events < max_events:
            self.now_ms, _, life, action = heapq.heappop(self._queue)
            if life is not None and life.is_over:
                continue
            self.events += 1
            action()
            for check in self.after_event:
                check()
            if stop():
                return True
        self.now_ms = max(self.now_ms, until_ms)
        return stop()
