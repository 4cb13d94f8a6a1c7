"""Single flipped bits in the files of one replica, and what its logs hold."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tailrace.model.errors import KafkaError
from tailrace.protocol.records.batch import check_crc, iter_batches
from tailrace.protocol.records.record import read_records

OF_PARTITIONS = (
    "[0-9]*.log",
    "[0-9]*.index",
    "[0-9]*.timeindex",
    "[0-9]*.snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "flushed-offset*",
)
"""Kinds of files in the directory of a partition."""
OF_ALL = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
"""Files that speak of all partitions of a node."""


class Flip(NamedTuple):
    """A bit that was flipped."""

    path: Path
    position: int
    bit: int

    def __str__(self) -> str:
        return f"{self.path.parent.name}/{self.path.name} byte {self.position} bit {self.bit}"


def flip_some_bit(data: Path, directories: list[str], chance: random.Random, *, kinds: tuple[str, ...]) -> Flip | None:
    """Flip one bit of one file of a node; None if it has no file of these kinds that has bytes."""
    while True:
        try:
            return _flip_some_bit(data, directories, chance, kinds=kinds)
        except (FileNotFoundError, _Shrunk):
            continue  # its node runs, and has just removed or cut that file


class _Shrunk(Exception):
    """The file has no such byte any more."""


def _flip_some_bit(data: Path, directories: list[str], chance: random.Random, *, kinds: tuple[str, ...]) -> Flip | None:
    for kind in chance.sample(kinds, len(kinds)):
        places = [data] if kind in OF_ALL else [data / name for name in directories]
        sizes = {path: path.stat().st_size for place in places for path in place.glob(kind)}
        paths = sorted(path for path, size_bytes in sizes.items() if size_bytes)
        if not paths:
            continue
        path = chance.choice(paths)
        flip = Flip(path, chance.randrange(sizes[path]), chance.randrange(8))
        with path.open("r+b") as file:
            file.seek(flip.position)
            byte = file.read(1)
            if not byte:
                raise _Shrunk
            file.seek(flip.position)
            file.write(bytes([byte[0] ^ 1 << flip.bit]))
        return flip
    return None


def values_on_disk(directory: Path) -> dict[int, str]:
    """The records of a partition's log, by offset, up to the first byte that is wrong. Its node may be running."""
    found: dict[int, str] = {}
    for path in sorted(directory.glob("[0-9]*.log")):
        try:
            found.update(_values(path.read_bytes()))
        except (KafkaError, FileNotFoundError):
            break
    return found


def _values(content: bytes) -> Iterator[tuple[int, str]]:
    for position, header in iter_batches(memoryview(content)):
        check_crc(content, position, header)
        if header.is_control:
            continue
        for record in read_records(memoryview(content)[position : position + header.size_bytes]):
            yield record.offset, (record.value or b"").decode()
