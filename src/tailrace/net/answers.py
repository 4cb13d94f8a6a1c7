"""The answers of one connection: given in any order, written in the order of the requests.

1. A request has a slot, in order of arrival. An answer leaves when all slots before its own are answered.
2. Answers of a turn leave in one write. The node reads no more requests from a client that does not take its answers,
   or whose large answers wait for an earlier answer. So a client costs the node a bounded memory, however much its
   requests ask for.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import Final, Protocol

from tailrace.net.limits import LONGEST_FRAME, ListenerLimits
from tailrace.net.pauses import Pause
from tailrace.net.transport import PORTION_BYTES, write_in_portions
from tailrace.net.turns import Turns

Buffer = bytes | bytearray | memoryview

_LENGTH = struct.Struct(">i")

_JOIN_BELOW: Final = 16 * 1024
"""Answers of a smaller size together are joined: one small copy is cheaper than a gathered write."""
_ENOUGH_QUEUED: Final = 1 << 20
"""The bytes of queued answers above which no more requests are carried out. The same limit holds for answers that wait
for an earlier answer."""


class AnswerHost(Protocol):
    """The state that the connections of a listener share."""

    turns: Turns
    limits: ListenerLimits
    is_transport_copying: bool


class Pausable(Protocol):
    """The connection of the answers."""

    pauses: int

    def pause(self, reason: int) -> None:
        """Take no more frames from the client, for this reason."""
        ...

    def resume(self, reason: int) -> None:
        """Take this reason away."""
        ...

    def close(self, reason: str) -> None: ...

    def abort(self, reason: str | None) -> None: ...


class AnswerQueue:
    """The slots of a connection, and its answers until they are written."""

    __slots__ = (
        "_connection",
        "_early",
        "_early_bytes",
        "_high_water",
        "_host",
        "_is_flush_planned",
        "_queued",
        "_queued_bytes",
        "_transport",
        "is_write_blocked",
        "next_answer",
        "next_slot",
        "written_bytes",
    )

    def __init__(self, connection: Pausable, host: AnswerHost) -> None:
        self._connection: Pausable | None = connection
        """None when the connection is closed: late answers keep no connection in memory."""
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._early: dict[int, Sequence[Buffer] | None] = {}
        self._early_bytes = 0
        self._queued: list[Buffer] = []
        self._queued_bytes = 0
        self._is_flush_planned = False
        self._high_water = 0
        self.next_slot = 0
        """The slot of the next request."""
        self.next_answer = 0
        """The first slot without an answer."""
        self.is_write_blocked = False
        """Whether the transport has more bytes than the client takes."""
        self.written_bytes = 0
        """The bytes handed to the transport since the connection was made."""

    def attach(self, transport: asyncio.Transport) -> None:
        """Write to this transport from now on."""
        self._transport = transport

    def end(self) -> None:
        """Drop all answers: the connection is closed."""
        self._connection = None
        self._queued.clear()
        self._early.clear()

    @property
    def in_progress(self) -> int:
        """The number of requests without an answer in its turn."""
        return self.next_slot - self.next_answer

    @property
    def is_empty(self) -> bool:
        """Whether no answer waits to be written."""
        return not self._queued

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the operating system has not taken yet."""
        return self._queued_bytes + self._bytes_in_transport

    @property
    def sent_bytes(self) -> int:
        """Bytes that the operating system has taken."""
        return self.written_bytes - self._bytes_in_transport

    @property
    def _bytes_in_transport(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def awaits(self, slot: int) -> bool:
        """Whether `answer` has not been called for this slot yet."""
        return slot >= self.next_answer and slot not in self._early

    def answer(self, slot: int, chunks: Sequence[Buffer] | None) -> None:
        """Queue the answer of this slot, or keep the chunks until the earlier slots are answered. None: this request
        gets no answer."""
        connection = self._connection
        if connection is None or connection.pauses & Pause.CLOSED:
            return
        early = self._early
        if slot != self.next_answer:
            assert self.awaits(slot), f"slot {slot} is answered twice"
            early[slot] = chunks
            if chunks is not None:
                self._count_early(connection, sum(map(len, chunks)))
            return
        self.next_answer = slot + 1
        if chunks is not None:
            self._queue(connection, chunks)
        if early and self.next_answer in early:
            self._queue_early(connection)
        # Resuming at half the limit saves a pause and a resume per answer for a client that always keeps the queue
        # full.
        if connection.pauses & Pause.IN_FLIGHT and self.in_progress <= self._host.limits.in_flight // 2:
            connection.resume(Pause.IN_FLIGHT)

    def _count_early(self, connection: Pausable, size: int) -> None:
        self._early_bytes += size
        if self._early_bytes > _ENOUGH_QUEUED and not connection.pauses & Pause.OUT_OF_ORDER:
            connection.pause(Pause.OUT_OF_ORDER)
        if self._early_bytes - size > self._host.limits.unsent_bytes:
            connection.abort(f"{self._early_bytes} bytes of answers wait for one before them")

    def _queue_early(self, connection: Pausable) -> None:
        early = self._early
        while self.next_answer in early:
            later = early.pop(self.next_answer)
            self.next_answer += 1
            if later is not None:
                self._early_bytes -= sum(map(len, later))
                self._queue(connection, later)
        if connection.pauses & Pause.OUT_OF_ORDER and self._early_bytes <= _ENOUGH_QUEUED:
            connection.resume(Pause.OUT_OF_ORDER)

    def _queue(self, connection: Pausable, chunks: Sequence[Buffer]) -> None:
        size = 0
        for chunk in chunks:
            size += len(chunk)
        if size > LONGEST_FRAME:
            connection.close(f"an answer of {size} bytes; a frame has at most {LONGEST_FRAME}")
            return
        self._queued.append(_LENGTH.pack(size))
        self._queued += chunks
        self._queued_bytes += 4 + size
        if not self._is_flush_planned:
            self._is_flush_planned = True
            self._host.turns.flush_at_end(self)
        if self._queued_bytes > _ENOUGH_QUEUED and not connection.pauses & Pause.SLOW_READER:
            connection.pause(Pause.SLOW_READER)
        if self.is_write_blocked and self.unsent_bytes - size > self._host.limits.unsent_bytes:
            connection.abort(f"{self.unsent_bytes} bytes of answers are not taken")

    def flush(self) -> None:
        """Write the queued answers, unless the client does not take the earlier answers."""
        self._is_flush_planned = False
        connection, transport = self._connection, self._transport
        if not self._queued or self.is_write_blocked or transport is None or transport.is_closing():
            return
        self._write(transport)
        if connection is not None and connection.pauses & Pause.SLOW_READER and not self.is_write_blocked:
            connection.resume(Pause.SLOW_READER)

    def _write(self, transport: asyncio.Transport) -> None:
        answers, size = self._queued, self._queued_bytes
        self._queued, self._queued_bytes = [], 0
        self.written_bytes += size
        if size <= _JOIN_BELOW:
            transport.write(b"".join(answers))
        elif not self._host.is_transport_copying:
            self._write_at_once(transport, answers)
        else:
            self._queued = write_in_portions(transport, answers, lambda: self.is_write_blocked)
            self._queued_bytes = sum(map(len, self._queued))
            self.written_bytes -= self._queued_bytes

    def _write_at_once(self, transport: asyncio.Transport, answers: list[Buffer]) -> None:
        """Write all chunks in one call; the transport has paused its protocol when it keeps too many of their bytes.

        `writelines` of asyncio has two faults. In some releases it never pauses the protocol (before 3.12.9 and 3.13.2,
        cpython issue 127655). Since 3.12 an empty chunk at the end stays in the transport, which then writes it for
        ever, a whole core of work, and never ends the stream. uvloop has neither fault.
        """
        while not answers[-1]:
            answers.pop()
        transport.writelines(answers)
        if not self.is_write_blocked and transport.get_write_buffer_size() > self._high_water:
            self._set_limits(transport)  # a transport compares its size with new limits, and pauses the protocol

    def go_on_writing(self) -> None:
        """Write again: the client takes bytes."""
        self.is_write_blocked = False
        self.flush()

    def set_write_high_water(self, size_bytes: int) -> None:
        """Set the number of unsent bytes in the transport above which answers wait in the queue."""
        assert self._transport is not None
        self._high_water = PORTION_BYTES if self._host.is_transport_copying else size_bytes
        self._set_limits(self._transport)

    def _set_limits(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=self._high_water, low=self._high_water // 4)
