"""Receive buffers and the pool they come from.

Rules:
1. A connection that waits for bytes between two frames holds no buffer: it draws one when bytes arrive and gives it
   back when it has consumed them. 2,000 idle connections cost no buffer at all.
2. A buffer is never handed out again, nor resized, while a view of it exists. A kept view keeps
   the buffer: the pool forgets a buffer that still has views and makes a new one.
3. All buffers in use together stay within a limit, but for one: if no connection could get a larger buffer before another is
   given back, half-read requests would wait for each other. The smallest size is always given, so small requests pass.
"""

from collections.abc import Callable

from tailrace.model.buffers import has_no_views, new_buffer

SMALLEST = 64 * 1024
"""The size of an ordinary buffer, in bytes. Larger ones are this, doubled as often as needed."""

_POISON = b"\xdb"


def size_class(size_bytes: int) -> int:
    """The size of the buffer that holds this many bytes: `SMALLEST` times a power of two."""
    if size_bytes <= SMALLEST:
        return SMALLEST
    return 1 << (size_bytes - 1).bit_length()


class BufferPool:
    """Buffers that wait to be used again.

    `limit_bytes` bounds what is in use, `keep_bytes` what is kept while unused. With `poison` every returned buffer is
    overwritten, so that code which kept a position instead of a view reads nonsense at once.
    """

    def __init__(self, *, limit_bytes: int = 256 << 20, keep_bytes: int = 32 << 20, poison: bool = False) -> None:
        self._limit_bytes = limit_bytes
        self._keep_bytes = keep_bytes
        self._poison = poison
        self._free: dict[int, list[bytearray]] = {SMALLEST: []}
        self._waiting: list[Callable[[], None]] = []
        self._overdraft: bytearray | None = None
        self.in_use_bytes = 0
        self.kept_bytes = 0

    def draw(self, size_bytes: int = SMALLEST, *, in_the_end: int = 0) -> bytearray | None:
        """A buffer of at least `size_class(size_bytes)`, contents undefined; None if the limit does not allow it.

        `in_the_end` is the size of the complete frame: a connection that goes beyond the limit gets all of that at
        once, so that it never has to ask again.
        """
        size = size_class(size_bytes)
        is_over = size > SMALLEST and self.in_use_bytes + size > self._limit_bytes
        if is_over:
            if self._overdraft is not None:
                return None
            size = max(size, size_class(in_the_end))
        self.in_use_bytes += size
        buffer = self._take_free(size) or new_buffer(size)
        if is_over:
            self._overdraft = buffer
        return buffer

    def _take_free(self, size: int) -> bytearray | None:
        free = self._free.get(size)
        while free:
            buffer = free.pop()
            self.kept_bytes -= size
            if has_no_views(buffer):
                if self._poison:
                    buffer[:] = _POISON * size
                return buffer
        return None

    def give_back(self, buffer: bytearray) -> None:
        """Take a drawn buffer back. The caller has dropped its own views; others may still exist (rule 2)."""
        size = len(buffer)
        self.in_use_bytes -= size
        if self.kept_bytes + size <= self._keep_bytes:
            self.kept_bytes += size
            self._free.setdefault(size, []).append(buffer)
        if buffer is self._overdraft:
            self._overdraft = None
        if size > SMALLEST and self._waiting:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    def when_free(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when a larger buffer has been given back and asking again is worth while."""
        self._waiting.append(callback)
