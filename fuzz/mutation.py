"""Random changes to valid bytes: what fuzzes where coverage cannot guide, and what is thrown at a running node."""

import struct
from collections.abc import Sequence
from random import Random

_BYTES = b"\x00\x01\x02\x7f\x80\xfe\xff"
_INTEGERS = (0, 1, -1, 127, 128, 255, 32_767, -32_768, 65_535, 10**8, 2**31 - 1, -(2**31))


class Mutator:
    """Gives bytes that are a few changes away from some seed. The same `random` gives the same bytes."""

    def __init__(self, seeds: Sequence[bytes], random: Random, *, max_bytes: int = 1 << 20) -> None:
        self._seeds = seeds
        self._random = random
        self._max_bytes = max_bytes

    def next(self) -> bytes:
        """Change a seed once to six times."""
        random = self._random
        data = bytearray(random.choice(self._seeds))
        for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
            random.choice(_CHANGES)(self, data)
        return bytes(data[: self._max_bytes])

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)

    def _set(self, data: bytearray) -> None:
        if data:
            data[self._random.randrange(len(data))] = self._random.choice(_BYTES)

    def _set_integer(self, data: bytearray) -> None:
        """Positions at which a length or count might stand."""
        code, size = self._random.choice(((">i", 4), (">h", 2), (">q", 8)))
        if len(data) < size:
            return
        number = self._random.choice(_INTEGERS)
        bound = 1 << (8 * size - 1)
        at = self._random.randrange(len(data) - size + 1)
        data[at : at + size] = struct.pack(code, max(-bound, min(number, bound - 1)))

    def _cut(self, data: bytearray) -> None:
        del data[self._random.randrange(len(data) + 1) :]

    def _remove(self, data: bytearray) -> None:
        at = self._random.randrange(len(data) + 1)
        del data[at : at + self._random.randrange(1, 9)]

    def _insert(self, data: bytearray) -> None:
        at = self._random.randrange(len(data) + 1)
        data[at:at] = self._random.randbytes(self._random.randrange(1, 9))

    def _repeat(self, data: bytearray) -> None:
        at = self._random.randrange(len(data) + 1)
        data[at:at] = data[at : at + self._random.randrange(1, 65)] * self._random.randrange(1, 4)

    def _splice(self, data: bytearray) -> None:
        other = self._random.choice(self._seeds)
        at = self._random.randrange(len(data) + 1)
        data[at:] = other[min(at, len(other)) :]


_CHANGES = (
    Mutator._flip,
    Mutator._flip,
    Mutator._set,
    Mutator._set,
    Mutator._set_integer,
    Mutator._set_integer,
    Mutator._cut,
    Mutator._remove,
    Mutator._insert,
    Mutator._repeat,
    Mutator._splice,
)
