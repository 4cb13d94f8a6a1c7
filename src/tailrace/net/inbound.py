"""One client's connection, seen from the server: frames in, answers out, both in order.

Invariants:
1. Slots are given to frames in order of arrival; answers leave in order of slots, whatever the order they are given in.
2. `_received` has the bytes that have arrived and are not consumed.
3. `_pauses` names every reason why no frame may be taken now. Reading from the socket is paused while there is one, and
   when the last one goes, the bytes at hand are parsed before more are read.
4. While the only reasons are that too many requests are in progress, or that the connection waits for its turn, reading
   goes on until the buffer at hand is full: so a hang-up is seen. If the client has sent more than that, `check_time`
   looks for the hang-up.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from tailrace.model.identity import ClientIdentity
from tailrace.net.buffers import BufferPool, ReceiveBuffer
from tailrace.net.fair_turns import FairTurns
from tailrace.net.limits import LONGEST_FRAME, SHORTEST_FRAME, IdleTimes, ListenerLimits, describe_bad_length
from tailrace.net.pauses import Pause
from tailrace.net.transport import PORTION_BYTES, DiscardingProtocol, has_hung_up, write_in_portions
from tailrace.net.turns import Turns

Buffer = bytes | bytearray | memoryview

_LENGTH = struct.Struct(">i")
_API_KEY = struct.Struct(">h")

_JOIN_BELOW = 16 * 1024
"""Answers that are smaller together are joined: one small copy is cheaper than a gathered write."""
_ENOUGH_QUEUED = 1 << 20
"""The bytes of queued answers above which no more requests are carried out. A client that does not take its answers is
not read from, and so costs the node this much memory, however much its requests ask for. The same limit holds for
answers that wait for an earlier one."""
_UNANSWERED_MS = 1_000
"""The wait for an answer after which a connection that is not read is checked for a hang-up."""


class Host(Protocol):
    """The listener of a connection, with the state that all its connections share."""

    name: str
    loop: asyncio.AbstractEventLoop
    turns: Turns
    fair_turns: FairTurns
    pool: BufferPool
    limits: ListenerLimits
    is_transport_copying: bool

    @property
    def on_frame(self) -> "Callable[[InboundConnection, int, memoryview], None]":
        """Takes a frame, without its length prefix."""
        ...

    def admit(self, connection: "InboundConnection") -> None:
        """Count a new connection, or abort it."""
        ...

    def forget(self, connection: "InboundConnection") -> None:
        """Remove a closed connection."""
        ...

    def report(self, connection: "InboundConnection", reason: str) -> None:
        """The connection is closed by the node for this reason."""
        ...


class InboundConnection(asyncio.BufferedProtocol):
    """A connection that the listener accepted. Its port for handlers is `server.ports.ServerConnection`."""

    __slots__ = (
        "_answers",
        "_answers_bytes",
        "_close_callbacks",
        "_early_answers",
        "_early_bytes",
        "_frames_taken",
        "_heard_from",
        "_idle_times",
        "_is_finishing",
        "_is_flush_planned",
        "_is_reading_paused",
        "_is_write_blocked",
        "_listener",
        "_next_answer",
        "_next_slot",
        "_pauses",
        "_received",
        "_suspensions",
        "_transport",
        "identity",
        "is_trusted",
        "turn_ended",
        "turn_seconds",
    )

    def __init__(self, listener: Host) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self.identity = ClientIdentity(listener.name, "")
        """The client, as far as it is known: a handshake makes a new one."""
        self.is_trusted = False
        """Whether the client runs on this machine."""
        self.turn_ended = 0.0
        self.turn_seconds = 0.0
        self._received = ReceiveBuffer(listener.pool)
        self._next_slot = 0
        self._next_answer = 0
        self._early_answers: dict[int, Sequence[Buffer] | None] = {}
        self._early_bytes = 0
        self._answers: list[Buffer] = []
        self._answers_bytes = 0
        self._pauses = 0
        self._suspensions = 0
        self._is_reading_paused = False
        self._is_write_blocked = False
        self._is_finishing = False
        self._is_flush_planned = False
        self._close_callbacks: list[Callable[[], None]] = []
        self._heard_from = False
        self._frames_taken = 0
        self._idle_times = IdleTimes()

    # The port for handlers: server.ports.ServerConnection

    @property
    def is_open(self) -> bool:
        return not self._pauses & Pause.CLOSED

    def awaits_answer(self, slot: int) -> bool:
        """Whether `answer` has not been called for this slot yet."""
        return slot >= self._next_answer and slot not in self._early_answers

    def answer(self, slot: int, chunks: Sequence[Buffer] | None) -> None:
        """Queue the answer of this slot, or keep it until those before it are there. None: this request gets none."""
        if self._pauses & Pause.CLOSED:
            return
        early = self._early_answers
        if slot != self._next_answer:
            assert self.awaits_answer(slot), f"slot {slot} is answered twice"
            early[slot] = chunks
            if chunks is not None:
                self._count_early(sum(map(len, chunks)))
            return
        self._next_answer = slot + 1
        if chunks is not None:
            self._queue(chunks)
        if early and self._next_answer in early:
            self._queue_early()
        # Resuming at half the limit saves a pause and a resume per answer for a client that always keeps it full.
        if self._pauses & Pause.IN_FLIGHT and self._in_progress <= self._listener.limits.in_flight // 2:
            self._resume(Pause.IN_FLIGHT)

    def _count_early(self, size: int) -> None:
        self._early_bytes += size
        if self._early_bytes > _ENOUGH_QUEUED and not self._pauses & Pause.OUT_OF_ORDER:
            self._pause(Pause.OUT_OF_ORDER)
        if self._early_bytes - size > self._listener.limits.unsent_bytes:
            self.abort(f"{self._early_bytes} bytes of answers wait for one before them")

    def _queue_early(self) -> None:
        early = self._early_answers
        while self._next_answer in early:
            later = early.pop(self._next_answer)
            self._next_answer += 1
            if later is not None:
                self._early_bytes -= sum(map(len, later))
                self._queue(later)
        if self._pauses & Pause.OUT_OF_ORDER and self._early_bytes <= _ENOUGH_QUEUED:
            self._resume(Pause.OUT_OF_ORDER)

    def close(self, reason: str) -> None:
        """Send the queued answers and close; nothing is read or answered any more."""
        if self._pauses & Pause.CLOSED:
            return
        self.flush()
        self._pauses |= Pause.CLOSED
        self._listener.report(self, reason)
        if self._transport is not None:
            self._transport.close()

    def discard_input(self) -> None:
        """Carry out no more requests; read and discard the bytes that still come."""
        self._pauses |= Pause.STOPPING
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.set_protocol(DiscardingProtocol(self))
            if self._is_reading_paused:
                self._is_reading_paused = False
                transport.resume_reading()

    def finish(self) -> None:
        """Send the queued answers, then the end of the stream; the client closes then."""
        self._pauses |= Pause.CLOSED
        self._listener.report(self, "")
        self._is_finishing = True
        self.flush()
        self._write_eof_when_sent()

    def _write_eof_when_sent(self) -> None:
        """End the stream when the queue is empty: a client that reads slowly still gets its answers."""
        transport = self._transport
        if self._is_finishing and not self._answers and transport is not None and not transport.is_closing():
            self._is_finishing = False
            transport.write_eof()

    @property
    def has_unanswered(self) -> bool:
        """Whether there are requests that were taken and not answered yet, or answers that have not left."""
        return self.is_open and bool(self._in_progress or self.unsent_bytes)

    def on_close(self, callback: Callable[[], None]) -> None:
        if self._pauses & Pause.CLOSED:
            self._listener.loop.call_soon(self._listener.turns.run, callback)
        else:
            self._close_callbacks.append(callback)

    def suspend(self) -> None:
        self._suspensions += 1
        self._pause(Pause.BUSY)

    def go_on(self) -> None:
        self._suspensions -= 1
        if not self._suspensions:
            self._resume(Pause.BUSY)

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        peer = transport.get_extra_info("peername")
        self.identity = ClientIdentity(self._listener.name, peer[0] if peer else "unknown")
        self._listener.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pauses |= Pause.CLOSED
        self._received.drop()
        self._listener.pool.forget(self)
        self._answers.clear()
        self._early_answers.clear()
        self._listener.forget(self)
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            self._listener.turns.run(callback)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received.free_part()

    def buffer_updated(self, nbytes: int) -> None:
        self._received.end += nbytes
        self._heard_from = True
        if not self._pauses:
            self._listener.fair_turns.take(self)
        elif not self._may_read:
            self._stop_reading()

    def pause_writing(self) -> None:
        self._is_write_blocked = True

    def resume_writing(self) -> None:
        self._is_write_blocked = False
        self.flush()
        self._write_eof_when_sent()
        if not self._is_write_blocked and self._pauses & Pause.SLOW_READER:
            self._resume(Pause.SLOW_READER)  # there was nothing left to write

    # Frames

    @property
    def _in_progress(self) -> int:
        return self._next_slot - self._next_answer

    def _take_frames(self) -> None:
        """Hand out every whole frame at hand, as far as the limits of one turn allow."""
        received = self._received
        buffer = received.data
        if buffer is None:
            return
        listener = self._listener
        limits = listener.limits
        on_frame = listener.on_frame
        view = received.view
        end = received.end
        start = first_start = received.start
        last_start = start + limits.bytes_per_turn
        turns = listener.turns
        frames_left = limits.frames_per_turn
        harmless = limits.harmless_frame_bytes
        while end - start >= 4 and not self._pauses:
            size = _LENGTH.unpack_from(buffer, start)[0]
            if not SHORTEST_FRAME <= size <= harmless and self._refuses(size, start):
                break
            frame_end = start + 4 + size
            if frame_end > end:
                break
            if frames_left == 0 or start >= last_start or (start != first_start and turns.is_long):
                self._yield_turn()
                break
            frames_left -= 1
            slot = self._next_slot
            self._next_slot = slot + 1
            self._frames_taken += 1
            on_frame(self, slot, view[start + 4 : frame_end])
            start = frame_end
            if self._next_slot - self._next_answer >= limits.in_flight:
                self._pauses |= Pause.IN_FLIGHT
        received.start = start
        del view
        if self._pauses & Pause.BUSY:
            return  # with the buffer: the request may need its bytes
        if start == end:
            received.drop()
        elif not self._pauses & Pause.CLOSED and not received.make_space():
            self._wait_for_memory()
        if self._pauses & Pause.IN_FLIGHT and not self._may_read:
            self._stop_reading()

    def _refuses(self, size: int, start: int) -> bool:
        """Whether this frame is refused; then the connection is closed."""
        buffer = self._received.data
        assert buffer is not None
        api_key = _API_KEY.unpack_from(buffer, start + 4)[0] if self._received.end - start >= 6 else None
        limit = self._listener.limits.frame_limit(api_key, is_trusted=self.is_trusted)
        if SHORTEST_FRAME <= size <= limit:
            return False
        self.close(describe_bad_length(bytes(buffer[start : start + 8]), limit))
        return True

    def _yield_turn(self) -> None:
        """Let others have a turn, then go on with the bytes at hand."""
        self._pause(Pause.FAIRNESS)
        self._resume(Pause.FAIRNESS)

    def _wait_for_memory(self) -> None:
        self._pause(Pause.MEMORY)
        self._listener.pool.when_free(self, lambda: self._resume(Pause.MEMORY))

    # Pausing

    def hold(self) -> None:
        """Do not read from the client until `let_go`."""
        self._pause(Pause.TOO_EARLY)

    def let_go(self) -> None:
        """Read from the client that was held."""
        self._resume(Pause.TOO_EARLY)

    def _pause(self, reason: int) -> None:
        self._pauses |= reason
        if not self._may_read:
            self._stop_reading()

    @property
    def _may_read(self) -> bool:
        """Invariant 4."""
        return not self._pauses & ~(Pause.IN_FLIGHT | Pause.QUEUED) and self._received.has_space

    def _stop_reading(self) -> None:
        if not self._is_reading_paused and self._transport is not None:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _resume(self, reason: int) -> None:
        """Take this reason away, and go on after the current callback if it was the last one."""
        if reason != Pause.FAIRNESS:
            self._pauses &= ~reason
        self._listener.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._pauses &= ~Pause.FAIRNESS
        if not self._pauses:
            self._listener.fair_turns.take(self)

    def wait_for_turn(self) -> None:
        self._pause(Pause.QUEUED)

    def take_turn(self) -> None:
        self._pauses &= ~Pause.QUEUED
        if self._pauses:
            return  # whatever takes the reason away asks for a turn again
        self._listener.turns.run(self._take_frames)
        if self._is_reading_paused and self._may_read and self._transport is not None:
            self._is_reading_paused = False
            self._transport.resume_reading()

    # Answers

    def _queue(self, chunks: Sequence[Buffer]) -> None:
        size = 0
        for chunk in chunks:
            size += len(chunk)
        if size > LONGEST_FRAME:
            self.close(f"an answer of {size} bytes; a frame has at most {LONGEST_FRAME}")
            return
        self._answers.append(_LENGTH.pack(size))
        self._answers += chunks
        self._answers_bytes += 4 + size
        if not self._is_flush_planned:
            self._is_flush_planned = True
            self._listener.turns.flush_at_end(self)
        if self._answers_bytes > _ENOUGH_QUEUED and not self._pauses & Pause.SLOW_READER:
            self._pause(Pause.SLOW_READER)
        if self._is_write_blocked and self.unsent_bytes - size > self._listener.limits.unsent_bytes:
            self.abort(f"{self.unsent_bytes} bytes of answers are not taken")

    def flush(self) -> None:
        """Write the queued answers, unless the client does not take the earlier ones."""
        self._is_flush_planned = False
        transport = self._transport
        if not self._answers or self._is_write_blocked or transport is None or transport.is_closing():
            return
        self._write(transport)
        if self._pauses & Pause.SLOW_READER and not self._is_write_blocked:
            self._resume(Pause.SLOW_READER)

    def _write(self, transport: asyncio.Transport) -> None:
        answers, size = self._answers, self._answers_bytes
        self._answers, self._answers_bytes = [], 0
        self._idle_times.written_bytes += size
        if size <= _JOIN_BELOW:
            transport.write(b"".join(answers))
        elif not self._listener.is_transport_copying:
            transport.writelines(answers)
        else:
            self._answers = write_in_portions(transport, answers, lambda: self._is_write_blocked)
            self._answers_bytes = sum(map(len, self._answers))
            self._idle_times.written_bytes -= self._answers_bytes

    def set_write_high_water(self, size_bytes: int) -> None:
        """Above this many unsent bytes in the transport, answers wait in our queue."""
        assert self._transport is not None
        high = PORTION_BYTES if self._listener.is_transport_copying else size_bytes
        self._transport.set_write_buffer_limits(high=high, low=high // 4)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the operating system has not taken yet."""
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._answers_bytes + waiting

    # Time

    def check_time(self, now_ms: int) -> None:
        """Called about once a second: close the connection if it is idle, or too slow in either direction."""
        idle_times = self._idle_times
        limits = self._listener.limits
        received = self._received
        is_in_the_way = received.is_large and not self._pauses and self._listener.pool.is_short
        frame_ms = limits.frame_time_ms(received.announced_bytes, is_in_the_way=is_in_the_way)
        if not self.is_open:
            if idle_times.age("closing", True, now_ms) > 5_000:
                self.abort(None)
            return
        heard, self._heard_from = self._heard_from, False
        is_idle = not heard and not self._in_progress and not self.unsent_bytes
        sent_bytes = idle_times.written_bytes - (self.unsent_bytes - self._answers_bytes)
        is_mid_frame = received.end > received.start and not self._pauses & ~Pause.MEMORY
        if idle_times.age("idle", is_idle, now_ms) > limits.idle_ms:
            self.close(f"idle for {limits.idle_ms} ms")
        elif idle_times.age(("frame", self._frames_taken), is_mid_frame, now_ms) > frame_ms:
            self.close(f"a frame was not complete after {frame_ms} ms")
        elif idle_times.age(("answer", self._next_answer), self._may_miss_end, now_ms) > _UNANSWERED_MS and has_hung_up(
            self._transport
        ):
            self.close("the client has gone while its requests waited")
        elif idle_times.age(("unsent", sent_bytes), self.unsent_bytes > 0, now_ms) > limits.stall_ms:
            self.abort(f"answers were not taken for {limits.stall_ms} ms")

    @property
    def _may_miss_end(self) -> bool:
        """Whether a hang-up would not be noticed: nothing is read, and requests wait."""
        return self._is_reading_paused and self._in_progress > 0

    def abort(self, reason: str | None) -> None:
        """Close without sending the queued answers; None: the reason was reported already."""
        self._pauses |= Pause.CLOSED
        if reason is not None:
            self._listener.report(self, reason)
        if self._transport is not None:
            self._transport.abort()
