"""The memory that record batches are read into on their way to a reader.

Memory is lent and never given back: a buffer is used again once no view exists, which is when its answer has been
sent. A slow reader keeps its buffer; the memory is freed when the answer goes.
"""

from collections import deque
from typing import Final

from tailrace.model.buffers import has_no_views, new_buffer

SMALLEST: Final = 16 * 1024
"""The size of the smallest buffer in bytes, and the least difference between sizes."""
LARGEST: Final = 4 << 20
"""The size of the largest kept buffer: few clients ask for larger reads."""
KEEP_BYTES: Final = 16 << 20
"""Bytes of four answers (fetch.max.bytes): an answer is read while earlier answers are sent."""


_TRIES: Final = 4
"""The number of buffers that are tried before a new buffer is made."""


class ReadBuffers:
    """Buffers in rings, one ring per size. `KEEP_BYTES` bounds all rings together."""

    __slots__ = ("_keep_bytes", "_rings", "_sizes_per_doubling", "kept_bytes")

    def __init__(self, *, keep_bytes: int = KEEP_BYTES, sizes_per_doubling: int = 1) -> None:
        """`sizes_per_doubling`: 1 for powers of two. With more sizes less of each buffer is wasted, and a buffer of the
        size is found less often, unless most requests have about the same size."""
        self._keep_bytes = keep_bytes
        self._sizes_per_doubling = sizes_per_doubling
        self._rings: dict[int, deque[bytearray]] = {}
        self.kept_bytes = 0
        """The bytes in the rings, lent or not. A buffer that has left its ring belongs to its reader alone."""

    def lend(self, size_bytes: int) -> bytearray:
        """A buffer of at least this many bytes, contents undefined. Take a view before the next call of `lend`."""
        if size_bytes > LARGEST:
            return bytearray(size_bytes)
        step = max((1 << (size_bytes - 1).bit_length()) // (2 * self._sizes_per_doubling), SMALLEST)
        size = -(-size_bytes // step) * step
        ring = self._rings.get(size)
        if ring is None:
            ring = self._rings[size] = deque()
        # The buffer that was lent first was mostly sent first.
        for _ in range(min(_TRIES, len(ring))):
            oldest = ring[0]
            ring.rotate(-1)
            if has_no_views(oldest):
                return oldest
        buffer = new_buffer(size)
        ring.append(buffer)
        self.kept_bytes += size
        while self.kept_bytes > self._keep_bytes:
            self._forget_one(ring)
        return buffer

    def _forget_one(self, ring: deque[bytearray]) -> None:
        """Drop one buffer: a buffer of another size, which may be out of use, or the oldest of this ring."""
        other = next((other for other in self._rings.values() if other and other is not ring), ring)
        self.kept_bytes -= len(other.popleft())
