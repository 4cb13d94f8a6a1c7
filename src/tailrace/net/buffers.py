"""Receive buffers and their pool.

Rules:
1. A connection that waits for bytes between two frames holds no buffer: it draws a buffer when bytes arrive and gives
   the buffer back when the bytes are consumed. 2,000 idle connections cost no buffer.
2. A buffer is never handed out again, nor resized, while a view into the buffer exists. A kept view keeps the buffer:
   the pool forgets a buffer that still has views and makes a new buffer.
3. All buffers in use together stay within a limit, with a single exception: one buffer may exceed the limit, as
   otherwise half-read requests could wait for each other's buffers for ever. The smallest size is always given, so
   small requests pass. Frames above 1 MiB share three quarters of the limit, so that large frames leave memory for
   small frames.
"""

from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from typing import Final

from tailrace.model.buffers import has_no_views, new_buffer

SMALLEST = 64 * 1024
"""The size of an ordinary buffer, in bytes. The size of a larger buffer is `SMALLEST`, doubled as often as needed."""

KEEP_BYTES: Final = 32 << 20
"""The most bytes of unused buffers that are kept."""
LARGE: Final = 1 << 20
"""A frame above this size is large: Java's producer makes requests of this size by default."""
MAPPED: Final = 16 << 20
"""Buffers of this size or more are mappings: a mapping takes memory only as bytes arrive, and is not kept."""
_LENGTH: Final = Struct(">i")

ByteBuffer = bytearray | mmap


def size_class(size_bytes: int) -> int:
    """The size of the buffer that holds this many bytes: `SMALLEST` times a power of two."""
    if size_bytes <= SMALLEST:
        return SMALLEST
    return 1 << (size_bytes - 1).bit_length()


class BufferPool:
    """Buffers that wait to be used again.

    `limit_bytes` bounds the buffers in use, `KEEP_BYTES` the unused buffers that are kept.
    """

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._large_limit_bytes = limit_bytes - limit_bytes // 4
        self._free: dict[int, list[bytearray]] = {SMALLEST: []}
        self._waiting: dict[object, Callable[[], None]] = {}
        self._overdraft: ByteBuffer | None = None
        self._large: dict[int, int] = {}
        """The buffers of large frames, by id, with their sizes."""
        self._large_bytes = 0
        self.in_use_bytes = 0
        self.kept_bytes = 0

    @property
    def is_short(self) -> bool:
        """Whether frames wait for memory."""
        return bool(self._waiting)

    def draw(self, size_bytes: int = SMALLEST, *, in_the_end: int = 0) -> ByteBuffer | None:
        """A buffer of at least `size_class(size_bytes)`, contents undefined; None if the limit does not allow it.

        `in_the_end` is the size of the complete frame: the one connection that may exceed the limit gets the size of
        the whole frame at once, and never has to ask again.
        """
        size = size_class(size_bytes)
        is_large = size > SMALLEST and max(size, in_the_end) > LARGE
        is_over = size > SMALLEST and (
            self._in_turn_bytes + size > self._limit_bytes
            or (is_large and self._large_bytes + size > self._large_limit_bytes)
        )
        if is_over:
            if self._overdraft is not None:
                return None
            size = max(size, size_class(in_the_end))
        self.in_use_bytes += size
        buffer = self._take_free(size) or _new_buffer(size)
        if is_over:
            self._overdraft = buffer
        elif is_large:
            self._large[id(buffer)] = size
            self._large_bytes += size
        return buffer

    @property
    def _in_turn_bytes(self) -> int:
        """The bytes in use that count towards the limit: without the buffer that exceeds the limit."""
        return self.in_use_bytes - (0 if self._overdraft is None else len(self._overdraft))

    def _take_free(self, size: int) -> bytearray | None:
        free = self._free.get(size)
        while free:
            buffer = free.pop()
            self.kept_bytes -= size
            if has_no_views(buffer):
                return buffer
        return None

    def give_back(self, buffer: ByteBuffer) -> None:
        """Take a drawn buffer back. The caller has dropped its own views; a handler may still keep a view (rule 2)."""
        size = len(buffer)
        self.in_use_bytes -= size
        self._large_bytes -= self._large.pop(id(buffer), 0)
        if isinstance(buffer, bytearray) and self.kept_bytes + size <= KEEP_BYTES:
            self.kept_bytes += size
            self._free.setdefault(size, []).append(buffer)
        if buffer is self._overdraft:
            self._overdraft = None
        if size > SMALLEST and self._waiting:
            waiting, self._waiting = self._waiting, {}
            for callback in waiting.values():
                callback()

    def when_free(self, waiter: object, callback: Callable[[], None]) -> None:
        """Call `callback` once, when a buffer above `SMALLEST` has been given back and `draw` may succeed."""
        self._waiting[waiter] = callback

    def forget(self, waiter: object) -> None:
        """Do not call the callback of this waiter any more."""
        self._waiting.pop(waiter, None)


def _new_buffer(size_bytes: int) -> ByteBuffer:
    # To fill 128 MiB with zeros would block the event loop for 50 ms or more; a mapping takes its pages as bytes
    # arrive.
    return new_buffer(size_bytes) if size_bytes < MAPPED else mmap(-1, size_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)


class ReceiveBuffer:
    """The bytes of one connection that have arrived and are not consumed: from `start` to `end` of `data`.

    The object holds a buffer of the pool only while there are such bytes, or while bytes are about to arrive (rule 1).
    """

    __slots__ = ("_expected_bytes", "_pool", "data", "end", "start", "view")

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._expected_bytes = SMALLEST
        self.data: ByteBuffer | None = None
        self.view = memoryview(b"")
        self.start = 0
        self.end = 0

    @property
    def has_space(self) -> bool:
        """Whether more bytes can be received now."""
        return self.data is None or self.end < len(self.data)

    @property
    def is_large(self) -> bool:
        """Whether other connections may have to wait for the buffer."""
        return self.data is not None and len(self.data) > SMALLEST

    @property
    def announced_bytes(self) -> int:
        """The announced size of the frame that has begun; 0 before its prefix has arrived."""
        if self.data is None or self.end - self.start < 4:
            return 0
        announced: int = _LENGTH.unpack_from(self.data, self.start)[0]
        return max(0, announced)

    def free_part(self) -> memoryview:
        """The place for the next bytes."""
        if self.data is None:
            buffer = self._pool.draw(self._expected_bytes)
            if buffer is None:
                buffer = self._pool.draw()
            assert buffer is not None
            self.data = buffer
            self.view = memoryview(buffer)
        return self.view[self.end :]

    def drop(self) -> None:
        """Give the buffer back: no byte of the buffer is needed any more."""
        buffer = self.data
        if buffer is not None:
            self.data = None
            self.view = memoryview(b"")
            self.start = 0
            self.end = 0
            self._pool.give_back(buffer)

    def make_space(self) -> bool:
        """Make room for the frame that has begun, without moving bytes to which a handler may have a view.

        A client may announce more than it ever sends: the buffer grows to four times the arrived bytes, unless this
        client has already sent a frame as large. A mapping is as large as the frame: a mapping takes memory only as
        bytes arrive, and growing would copy the bytes. False: the pool has no larger buffer now, and no byte more fits.
        """
        buffer = self.data
        assert buffer is not None
        arrived = self.end - self.start
        needed = 4 + _LENGTH.unpack_from(buffer, self.start)[0] if arrived >= 4 else SMALLEST
        if needed <= arrived:  # a whole frame that waits for the end of a pause
            return True
        if self.start + needed <= len(buffer):
            return True
        if self.end < len(buffer) and needed > len(buffer) and self.start == 0:
            return True  # the buffer must grow, but there is space for the next bytes
        proved = max(self._expected_bytes, 4 * arrived, SMALLEST)
        larger = self._pool.draw(needed if proved >= MAPPED else min(needed, proved), in_the_end=needed)
        if larger is None:
            return self.end < len(buffer)
        larger[:arrived] = self.view[self.start : self.end]
        self.drop()
        self.data = larger
        self.view = memoryview(larger)
        self.end = arrived
        if needed <= len(larger):
            # Less than the size of a mapping: otherwise each small request of this client would map and release memory.
            self._expected_bytes = max(self._expected_bytes, min(needed, MAPPED // 2))
        return True
