"""The disks of simulated nodes. The world draws how long each work takes. Works of a life that has ended do nothing."""

from collections import deque
from collections.abc import Callable

from simulation.harness.world import Action, Life, World
from tailrace.storage import FlushTicket, Log
from testkit.nodes.ports import flush_now


class _Disk:
    """The delays of a disk."""

    def __init__(self, world: World, guard: Callable[[Action], None], life: Life, *, key: int, longest_ms: int) -> None:
        self._world = world
        self._guard = guard
        self._life = life
        self._key = key
        self._longest_ms = longest_ms

    def _after_a_while(self, action: Action) -> None:
        delay_ms = self._world.between(0, self._longest_ms, "disk", self._key)
        self._world.after(delay_ms, lambda: self._guard(action), self._life)


class SlowDisk(_Disk):
    """A `server.ports.Disk` that does one work at a time, and takes a while for each work."""

    def __init__(self, world: World, guard: Callable[[Action], None], life: Life, *, key: int, longest_ms: int) -> None:
        super().__init__(world, guard, life, key=key, longest_ms=longest_ms)
        self._works: deque[tuple[Action, Action]] = deque()

    def flush(self, log: Log, on_done: Action) -> None:
        self.carry_out(lambda: flush_now(log), on_done)

    def carry_out(self, work: Action, on_done: Action) -> None:
        self._works.append((work, on_done))
        if len(self._works) == 1:
            self._after_a_while(self._run)

    def _run(self) -> None:
        work, on_done = self._works[0]
        work()
        self._works.popleft()
        if self._works:
            self._after_a_while(self._run)
        on_done()


class RoundDisk(_Disk):
    """A `server.ports.Disk` with rounds, as the flush thread has: begun, synced and finished at different times."""

    def __init__(self, world: World, guard: Callable[[Action], None], life: Life, *, key: int, longest_ms: int) -> None:
        super().__init__(world, guard, life, key=key, longest_ms=longest_ms)
        self._waiting: dict[Log, list[Action]] = {}
        self._works: list[tuple[Action, Action]] = []
        self._is_busy = False
        self._began_ms: int | None = None
        self._held: list[Action] | None = None

    @property
    def stalled_seconds(self) -> float:
        """The time that the running round has taken so far; 0 if none runs."""
        return 0.0 if self._began_ms is None else (self._world.now_ms - self._began_ms) / 1000

    def hang(self) -> None:
        """Sync nothing more, and finish nothing."""
        if self._held is None:
            self._held = []

    def answer(self) -> None:
        """End the hang: sync and finish again."""
        held, self._held = self._held or [], None
        for action in held:
            self._later(action)

    def flush(self, log: Log, on_done: Action) -> None:
        self._waiting.setdefault(log, []).append(on_done)
        self._plan()

    def carry_out(self, work: Action, on_done: Action) -> None:
        self._works.append((work, on_done))
        self._plan()

    def _plan(self) -> None:
        if not self._is_busy:
            self._is_busy = True
            self._world.after(0, lambda: self._guard(self._begin), self._life)

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, {}
        works, self._works = self._works, []
        if not waiting and not works:
            self._is_busy = False
            self._began_ms = None
            return
        self._began_ms = self._world.now_ms
        flushes = [(log, log.flushes.begin(), callbacks) for log, callbacks in waiting.items() if not log.is_offline]
        given_up = [callback for log, callbacks in waiting.items() if log.is_offline for callback in callbacks]
        works += ((lambda: None, callback) for callback in given_up)
        self._later(lambda: self._sync(flushes, works))

    def _sync(self, flushes: list[tuple[Log, FlushTicket, list[Action]]], works: list[tuple[Action, Action]]) -> None:
        for _, ticket, _ in flushes:
            ticket.sync()
        for work, _ in works:
            work()
        self._later(lambda: self._finish(flushes, works))

    def _finish(self, flushes: list[tuple[Log, FlushTicket, list[Action]]], works: list[tuple[Action, Action]]) -> None:
        for log, ticket, _ in flushes:
            log.flushes.finish(ticket)
        for _, _, callbacks in flushes:
            for callback in callbacks:
                callback()
        for _, on_done in works:
            on_done()
        self._begin()

    def _later(self, action: Action) -> None:
        if self._held is not None:
            self._held.append(action)
            return
        self._after_a_while(action)
