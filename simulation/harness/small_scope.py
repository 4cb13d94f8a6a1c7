"""Exhaustive search of small worlds: every order in which a few things can happen to a few nodes.

A world is an immutable value with a fingerprint of 64 bits; of worlds with the same fingerprint only one world is
looked at. When the search ends without a breach, that scope has no breach, unless two different worlds have the same
fingerprint: the chance of that is less than 1 : 100,000 for a search of ten million worlds.

Several processes search depth first from different worlds and share one table of what has been seen. Two processes that
reach a world within the same moment may both look at that world; every world is looked at once at least.
"""

import mmap
import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Protocol, TypeVar

W = TypeVar("W")
A = TypeVar("A")

STARTS_PER_PROCESS = 200
"""The number of worlds, for each process, from which the search goes on in several processes: many, since some worlds
lead to few others."""
REPORT_EVERY = 20_000
"""Transitions between two looks at the clock."""


class ScopeBreach(AssertionError):
    """An invariant does not hold, and the actions that lead there."""

    def __init__(self, detail: str, actions: list[str]) -> None:
        super().__init__(detail, actions)
        self.detail = detail
        self.actions = actions

    def __str__(self) -> str:
        return "\n  ".join([self.detail, *self.actions])


@dataclass(slots=True)
class Explored:
    """The results of a search."""

    states: int = 0
    transitions: int = 0
    deepest: int = 0
    seconds: float = 0.0
    is_complete: bool = False
    """Whether every state within the scope was visited."""
    sometimes: set[str] = field(default_factory=set)
    """The states that were reached somewhere."""

    def summary(self) -> str:
        """The results in words."""
        ended = "all of them" if self.is_complete else "the search was cut off"
        seen = f"{self.states} states, {self.transitions} transitions, {self.deepest} deep"
        return f"{seen}: {ended}, no law broken; {self.seconds:.0f} s\nreached: {', '.join(sorted(self.sometimes))}"

    def add(self, other: "Explored") -> None:
        """The results of another process."""
        self.states += other.states
        self.transitions += other.transitions
        self.deepest = max(self.deepest, other.deepest)
        self.is_complete = self.is_complete and other.is_complete
        self.sometimes |= other.sometimes


class ScopeModel(Protocol[W, A]):
    """The worlds to search. Laws must look at states, not at the order of the events that led to the states."""

    def actions(self, world: W) -> Sequence[A]:
        """The possible next events."""
        ...

    def take(self, world: W, action: A) -> W:
        """The world after this action. Raises AssertionError at a breach of a law."""
        ...

    def fingerprint(self, world: W) -> int:
        """A number of at most 64 bits, not 0. In every process it is the same for worlds that nothing can tell
        apart."""
        ...

    def name(self, action: A) -> str:
        """The action in words."""
        ...

    @property
    def sometimes(self) -> set[str]:
        """The notable states that were reached, in this process."""
        ...


class Fingerprints:
    """Makes the fingerprint of a world from the digests of its parts. Most parts were also in the world before."""

    def __init__(self, plain: Callable[[Any], object]) -> None:
        """`plain` gives a value of the part whose `repr` is the same for equal parts, in every process."""

        @lru_cache(maxsize=1 << 16)
        def digest(part: Hashable) -> bytes:
            return blake2b(repr(plain(part)).encode(), digest_size=16).digest()

        self._digest = digest

    def of(self, parts: Iterable[Hashable]) -> int:
        """64 bits, not 0, of these parts in this order."""
        return int.from_bytes(blake2b(b"".join(map(self._digest, parts)), digest_size=8).digest(), "big") | 1


class SeenWorlds(Protocol):
    """The fingerprints that have been seen."""

    def claim(self, fingerprint: int) -> bool:
        """Note this fingerprint; returns whether it is new."""
        ...


class SeenHere:
    """The fingerprints seen by one process."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def claim(self, fingerprint: int) -> bool:
        before = len(self._known)
        self._known.add(fingerprint)
        return len(self._known) > before


class SeenTogether:
    """The fingerprints seen by a process and the processes that it forks: a table with open addresses in shared memory.

    Nothing is locked. When two processes write to the same place at once, one fingerprint is forgotten, and its world
    is looked at again if the search meets it again.
    """

    def __init__(self, most: int) -> None:
        self._size = 1 << max(most * 3 // 2, 1024).bit_length()
        self._memory = mmap.mmap(-1, self._size * 8)
        self._table = memoryview(self._memory).cast("Q")

    def claim(self, fingerprint: int) -> bool:
        table, last = self._table, self._size - 1
        index = fingerprint & last
        while True:
            known = table[index]
            if known == fingerprint:
                return False
            if not known:
                table[index] = fingerprint
                return True
            index = (index + 1) & last

    def close(self) -> None:
        """Give the memory back."""
        self._table.release()
        self._memory.close()


@dataclass(slots=True)
class _Visit(Generic[W, A]):
    """A world of the present path, with the actions that are still to be tried in it."""

    world: W
    to_do: list[A]


class _Search(Generic[W, A]):
    """The part of the search that one process does."""

    def __init__(self, model: ScopeModel[W, A], seen: SeenWorlds, *, max_states: int, deadline_s: float) -> None:
        self._model = model
        self._seen = seen
        self._max_states = max_states
        self._deadline_s = deadline_s
        self.found = Explored(is_complete=True)
        self.on_report: Callable[[Explored], None] = lambda _: None
        self._next_report = REPORT_EVERY

    def visit(self, world: W) -> bool:
        """Whether this world is new."""
        is_new = self._seen.claim(self._model.fingerprint(world))
        self.found.states += is_new
        return is_new

    def below(self, start: W, way: list[str]) -> None:
        """Visit every world that can be reached from a visited world. Raises ScopeBreach with the way to the breach."""
        model, seen, found = self._model, self._seen, self.found
        stack = [_Visit(start, list(model.actions(start)))]
        tried: list[A] = []
        while stack and found.is_complete:
            visit = stack[-1]
            if not visit.to_do:
                stack.pop()
                if tried:
                    tried.pop()
                continue
            action = visit.to_do.pop()
            found.transitions += 1
            if found.transitions >= self._next_report:
                self._report()
            try:
                world = model.take(visit.world, action)
            except AssertionError as error:
                names = [model.name(taken) for taken in (*tried, action)]
                raise ScopeBreach(f"{type(error).__name__}: {error}", [*way, *names]) from error
            if seen.claim(model.fingerprint(world)):
                found.states += 1
                if found.states >= self._max_states:
                    found.is_complete = False
                tried.append(action)
                stack.append(_Visit(world, list(model.actions(world))))
                found.deepest = max(found.deepest, len(way) + len(tried))

    def _report(self) -> None:
        self._next_report += REPORT_EVERY
        self.on_report(self.found)
        if time.monotonic() > self._deadline_s:
            self.found.is_complete = False

    def spread(self, start: W, count: int) -> list[tuple[W, list[str]]]:
        """Search breadth first until so many worlds wait; return these worlds with the actions that lead to them:
        processes can begin there."""
        model, waiting = self._model, [(start, list[str]())]
        while waiting and len(waiting) < count:
            following: list[tuple[W, list[str]]] = []
            for world, way in waiting:
                for action in model.actions(world):
                    self.found.transitions += 1
                    try:
                        after = model.take(world, action)
                    except AssertionError as error:
                        detail = f"{type(error).__name__}: {error}"
                        raise ScopeBreach(detail, [*way, model.name(action)]) from error
                    if self.visit(after):
                        following.append((after, [*way, model.name(action)]))
            waiting = following
            self.found.deepest += bool(following)
        return waiting


def explore(
    model: ScopeModel[W, A],
    start: W,
    *,
    max_states: int,
    processes: int = 1,
    max_seconds: float = 1e9,
    tell: Callable[[int], None] = lambda _: None,
) -> Explored:
    """Visit every world that can be reached. Raises ScopeBreach with the way to the first breach.

    `tell` hears now and then how many worlds have been seen.
    """
    began = time.monotonic()
    deadline_s = began + max_seconds
    if processes <= 1:
        alone = _Search(model, SeenHere(), max_states=max_states, deadline_s=deadline_s)
        alone.on_report = lambda found: tell(found.states)
        alone.visit(start)
        alone.below(start, [])
        found = alone.found
    else:
        found = _explore_together(model, start, max_states, processes, deadline_s, tell)
    found.sometimes |= model.sometimes
    found.seconds = time.monotonic() - began
    return found


def look_around(model: ScopeModel[W, A], start: W, *, max_states: int) -> None:
    """Visit the first worlds. Raises the breach of a law as the law has raised it."""
    try:
        explore(model, start, max_states=max_states)
    except ScopeBreach as breach:
        assert breach.__cause__ is not None
        raise breach.__cause__ from None


def _explore_together(
    model: ScopeModel[W, A],
    start: W,
    max_states: int,
    processes: int,
    deadline_s: float,
    tell: Callable[[int], None],
) -> Explored:
    seen = SeenTogether(max_states)
    try:
        first = _Search(model, seen, max_states=max_states, deadline_s=deadline_s)
        first.visit(start)
        starts = first.spread(start, STARTS_PER_PROCESS * processes)
        first.found.is_complete = first.found.states < max_states
        share = (max_states - first.found.states) // processes
        context = get_context("fork")  # so that every process knows these worlds
        next_start = context.Value("q", 0)

        def search(heard: Connection) -> None:
            part = _Search(model, seen, max_states=share, deadline_s=deadline_s)
            part.on_report = lambda found: heard.send(found.states)
            try:
                for world, way in _drawn(starts, next_start):
                    part.below(world, way)
                    if not part.found.is_complete:
                        break
                part.found.sometimes |= model.sometimes
                heard.send(part.found)
            except ScopeBreach as breach:
                heard.send((breach.detail, breach.actions))
            heard.close()
            os._exit(0)  # what else the parent has registered to be done at the end is the parent's

        workers: dict[Connection, BaseProcess] = {}
        for _ in range(processes if starts else 0):
            hears, speaks = context.Pipe(duplex=False)
            worker = context.Process(target=search, args=(speaks,))
            worker.start()
            speaks.close()
            workers[hears] = worker
        _gather(workers, first.found, tell)
        return first.found
    finally:
        seen.close()


def _drawn(starts: Sequence[tuple[W, list[str]]], next_start: Any) -> Iterator[tuple[W, list[str]]]:
    """The starts that no other process has taken."""
    while True:
        with next_start.get_lock():
            index = next_start.value
            next_start.value += 1
        if index >= len(starts):
            return
        yield starts[index]


def _gather(workers: dict[Connection, BaseProcess], total: Explored, tell: Callable[[int], None]) -> None:
    """Read the results of all processes until every process has ended. Raises ScopeBreach, after the other processes
    are stopped."""
    running: dict[Connection, int] = dict.fromkeys(workers, 0)
    try:
        while running:
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                message = connection.recv()
                if isinstance(message, Explored):
                    total.add(message)
                    del running[connection]
                elif isinstance(message, int):
                    running[connection] = message
                    tell(total.states + sum(running.values()))
                else:
                    raise ScopeBreach(*message)
    finally:
        for connection, worker in workers.items():
            if connection in running:
                worker.terminate()
            worker.join()
            connection.close()
