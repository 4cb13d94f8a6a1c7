"""The files and directories of a simulated disk: their content now, and after a power cut."""

from random import Random
from typing import Final

SECTOR_BYTES: Final = 512


class Inode:
    """A file's bytes: the bytes that a reader gets, and the bytes on the platter."""

    __slots__ = ("changes", "data", "durable")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.changes: list[tuple[int, bytes | None]] = []
        """Since the last sync, in order: bytes written at a position, or None for a truncation to that position."""

    def sync(self) -> None:
        for position, written in self.changes:
            apply(self.durable, position, written, None)
        self.changes.clear()

    def drop_unsynced(self) -> None:
        """Drop the unsynced changes of a failed sync: readers still get the bytes, but no later sync writes them (as on
        Linux)."""
        self.changes.clear()

    def lose_unsynced(self, random: Random) -> None:
        content = bytearray(self.durable)
        mode = random.choice(("none", "all", "prefix", "sectors"))
        kept = len(self.changes) if mode in ("all", "sectors") else 0
        if mode == "prefix" and self.changes:
            kept = random.randrange(len(self.changes) + 1)
        for position, written in self.changes[:kept]:
            apply(content, position, written, random if mode == "sectors" else None)
        if mode == "prefix" and kept < len(self.changes):
            position, written = self.changes[kept]
            if written is not None:
                apply(content, position, written[: random.randrange(len(written) + 1)], None)
        self.data, self.durable = content, content[:]
        self.changes.clear()


def apply(content: bytearray, position: int, written: bytes | None, random: Random | None) -> None:
    """Apply one change; with `random` only some of its sectors, or a truncation perhaps not at all."""
    if written is None:
        if random is None or random.random() < 0.5:
            del content[position:]
        return
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    if random is None:
        content[position : position + len(written)] = written
        return
    end = position + len(written)
    if len(content) < end and random.random() < 0.7:
        # The new size was recorded before the sectors arrived.
        content.extend(bytes(end - len(content)))
    start = position
    while start < end:
        stop = min((start // SECTOR_BYTES + 1) * SECTOR_BYTES, end)
        if random.random() < 0.5:
            if len(content) < start:
                content.extend(bytes(start - len(content)))
            content[start:stop] = written[start - position : stop - position]
        start = stop


class Directory:
    """Names: the names that a reader gets, and the names on the platter."""

    __slots__ = ("changes", "durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}
        self.changes: list[dict[str, Inode | Directory | None]] = []
        """The steps since the last sync, in order: the new entry of each name, None if it was removed."""

    def change(self, step: dict[str, "Inode | Directory | None"]) -> None:
        take_step(self.entries, step)
        self.changes.append(step)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.changes.clear()

    def sync_all(self) -> None:
        """Sync this directory and everything below."""
        self.sync()
        for entry in self.entries.values():
            if isinstance(entry, Directory):
                entry.sync_all()
            else:
                entry.sync()

    def lose_unsynced(self, random: Random) -> None:
        share = random.choice((0.0, 0.5, 1.0))
        self.entries = dict(self.durable)
        for step in self.changes:
            if random.random() < share:
                take_step(self.entries, step)
        self.sync()
        for _, entry in sorted(self.entries.items()):
            entry.lose_unsynced(random)


def take_step(entries: dict[str, Inode | Directory], step: dict[str, Inode | Directory | None]) -> None:
    for name, entry in step.items():
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry
