"""A client's connection, seen from the server: frames in, answers out, both in order.

Invariants:
1. Frames get slots in order of arrival; answers leave in order of slots (`net.answers`).
2. `_received` has the bytes that have arrived and are not consumed.
3. `pauses` names every reason why no frame may be taken now. Reading from the socket is paused while there is a reason,
   and when the last reason is gone, the bytes at hand are parsed before more bytes are read.
4. While the only reasons are that too many requests are in progress, or that the connection waits for its turn, reading
   goes on until the buffer at hand is full: so a hang-up is seen. If the buffer is full, `check_time` looks for the
   hang-up.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Protocol, cast

from tailrace.model.identity import ClientIdentity
from tailrace.net.answers import AnswerHost, AnswerQueue
from tailrace.net.buffers import BufferPool, ReceiveBuffer
from tailrace.net.fair_turns import FairTurns
from tailrace.net.limits import SHORTEST_FRAME, IdleTimes, describe_bad_length
from tailrace.net.pauses import Pause
from tailrace.net.transport import DiscardingProtocol, has_hung_up

_LENGTH = struct.Struct(">i")
_API_KEY = struct.Struct(">h")

_UNANSWERED_MS = 1_000
"""The wait for an answer after which a connection that is not read is checked for a hang-up."""


class Host(AnswerHost, Protocol):
    """The listener of a connection, with the state that all its connections share."""

    name: str
    loop: asyncio.AbstractEventLoop
    fair_turns: FairTurns
    pool: BufferPool

    @property
    def on_frame(self) -> "Callable[[InboundConnection, int, memoryview], None]":
        """Takes a frame, without its length prefix."""
        ...

    def admit(self, connection: "InboundConnection") -> None:
        """Count a new connection, or abort the connection."""
        ...

    def forget(self, connection: "InboundConnection") -> None:
        """Remove a closed connection."""
        ...

    def report(self, connection: "InboundConnection", reason: str) -> None:
        """Log that the node closes the connection for this reason."""
        ...


class InboundConnection(asyncio.BufferedProtocol):
    """A connection that the listener accepted. Its port for handlers is `server.ports.ServerConnection`."""

    __slots__ = (
        "_close_callbacks",
        "_heard_from",
        "_idle_times",
        "_is_finishing",
        "_is_reading_paused",
        "_listener",
        "_received",
        "_suspensions",
        "_throttle",
        "_transport",
        "answer",
        "answers",
        "guard",
        "identity",
        "is_trusted",
        "pauses",
        "turn_ended",
        "turn_seconds",
    )

    def __init__(self, listener: Host) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self.identity = ClientIdentity(listener.name, "")
        """The client, as far as the node knows the client: a handshake makes a new identity."""
        self.is_trusted = False
        """Whether the client runs on this machine."""
        self.guard: Callable[[InboundConnection, int, memoryview], None] | None = None
        """Takes the frames in place of the listener's `on_frame` as long as the client is not authenticated."""
        self.turn_ended = 0.0
        self.turn_seconds = 0.0
        self._received = ReceiveBuffer(listener.pool)
        self.answers = AnswerQueue(self, listener)
        self.answer = self.answers.answer
        """Takes the answer of a slot. An attribute, since a method would be one more call for each request."""
        self.pauses = 0
        self._suspensions = 0
        self._throttle: asyncio.TimerHandle | None = None
        self._is_reading_paused = False
        self._is_finishing = False
        self._close_callbacks: list[Callable[[], None]] = []
        self._heard_from = False
        self._idle_times = IdleTimes()

    # The port for handlers: server.ports.ServerConnection

    @property
    def is_open(self) -> bool:
        return not self.pauses & Pause.CLOSED

    def awaits_answer(self, slot: int) -> bool:
        """Whether `answer` has not been called for this slot yet."""
        return self.answers.awaits(slot)

    def close(self, reason: str) -> None:
        """Send the queued answers and close; nothing is read or answered any more."""
        if self.pauses & Pause.CLOSED:
            return
        self.answers.flush()
        self.pauses |= Pause.CLOSED
        self._listener.report(self, reason)
        if self._transport is not None:
            self._transport.close()

    def discard_input(self) -> None:
        """Carry out no more requests; read and discard the bytes that still come."""
        self.pauses |= Pause.STOPPING
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.set_protocol(DiscardingProtocol(self))
            if self._is_reading_paused:
                self._is_reading_paused = False
                transport.resume_reading()

    def finish(self) -> None:
        """Send the queued answers, then the end of the stream; the client closes then."""
        self.pauses |= Pause.CLOSED
        self._listener.report(self, "")
        self._is_finishing = True
        self.answers.flush()
        self._write_eof_when_sent()

    def _write_eof_when_sent(self) -> None:
        """End the stream when the queue is empty: a client that reads slowly still gets its answers."""
        transport = self._transport
        if self._is_finishing and self.answers.is_empty and transport is not None and not transport.is_closing():
            self._is_finishing = False
            if transport.can_write_eof():
                transport.write_eof()
            else:  # TLS ends both directions together
                transport.close()

    @property
    def has_unanswered(self) -> bool:
        """Whether there are requests that were taken and not answered yet, or answers that have not left."""
        return self.is_open and bool(self.answers.in_progress or self.answers.unsent_bytes)

    def on_close(self, callback: Callable[[], None]) -> None:
        if self.pauses & Pause.CLOSED:
            self._listener.loop.call_soon(self._listener.turns.run, callback)
        else:
            self._close_callbacks.append(callback)

    def suspend(self) -> None:
        self._suspensions += 1
        self.pause(Pause.BUSY)

    def go_on(self) -> None:
        self._suspensions -= 1
        if not self._suspensions:
            self.resume(Pause.BUSY)

    def throttle(self, throttle_ms: int) -> None:
        loop, before = self._listener.loop, self._throttle
        if self.pauses & Pause.CLOSED or (before is not None and before.when() >= loop.time() + throttle_ms / 1000):
            return
        if before is not None:
            before.cancel()
        self._throttle = loop.call_later(throttle_ms / 1000, self._end_throttle)
        self.pause(Pause.THROTTLED)

    def _end_throttle(self) -> None:
        self._throttle = None
        self.resume(Pause.THROTTLED)

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it
        self.answers.attach(self._transport)
        peer = transport.get_extra_info("peername")
        self.identity = ClientIdentity(self._listener.name, peer[0] if peer else "unknown")
        self._listener.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.pauses |= Pause.CLOSED
        if self._throttle is not None:
            self._throttle.cancel()
        self._received.drop()
        self._listener.pool.forget(self)
        self.answers.end()
        self._listener.forget(self)
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            self._listener.turns.run(callback)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received.free_part()

    def buffer_updated(self, nbytes: int) -> None:
        self._received.end += nbytes
        self._heard_from = True
        if not self.pauses:
            self._listener.fair_turns.take(self)
        elif not self._may_read:
            self._stop_reading()

    def pause_writing(self) -> None:
        self.answers.is_write_blocked = True

    def resume_writing(self) -> None:
        answers = self.answers
        answers.go_on_writing()
        self._write_eof_when_sent()
        if not answers.is_write_blocked and self.pauses & Pause.SLOW_READER:
            self.resume(Pause.SLOW_READER)  # there was nothing left to write

    # Frames

    def _take_frames(self) -> None:
        """Hand out every whole frame at hand, as far as the limits of one turn allow."""
        received = self._received
        buffer = received.data
        if buffer is None:
            return
        listener = self._listener
        limits = listener.limits
        on_frame, answers = self.guard or listener.on_frame, self.answers
        view = received.view
        end = received.end
        start = first_start = received.start
        last_start = start + limits.bytes_per_turn
        turns = listener.turns
        frames_left = limits.frames_per_turn
        harmless = limits.harmless_frame_bytes if self.guard is None else 0
        while end - start >= 4 and not self.pauses:
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
            slot = answers.next_slot
            answers.next_slot = slot + 1
            on_frame(self, slot, view[start + 4 : frame_end])
            start = frame_end
            if answers.next_slot - answers.next_answer >= limits.in_flight:
                self.pauses |= Pause.IN_FLIGHT
        received.start = start
        del view
        if self.pauses & Pause.BUSY:
            return  # and keep the buffer: the request may need its bytes
        if start == end:
            received.drop()
        elif not self.pauses & Pause.CLOSED and not received.make_space():
            self._wait_for_memory()
        if self.pauses & Pause.IN_FLIGHT and not self._may_read:
            self._stop_reading()

    def _refuses(self, size: int, start: int) -> bool:
        """Whether this frame is refused; then the connection is closed."""
        buffer = self._received.data
        assert buffer is not None
        if self.guard is not None:
            limit = self._listener.limits.unauthenticated_frame_bytes
            if 0 <= size <= limit:  # tokens of SASL may be shorter than any request
                return False
        else:
            api_key = _API_KEY.unpack_from(buffer, start + 4)[0] if self._received.end - start >= 6 else None
            limit = self._listener.limits.frame_limit(api_key, is_trusted=self.is_trusted)
            if SHORTEST_FRAME <= size <= limit:
                return False
        self.close(describe_bad_length(bytes(buffer[start : start + 8]), limit))
        return True

    def _yield_turn(self) -> None:
        """Let other connections have a turn, then go on with the bytes at hand."""
        self.pause(Pause.FAIRNESS)
        self.resume(Pause.FAIRNESS)

    def _wait_for_memory(self) -> None:
        self.pause(Pause.MEMORY)
        self._listener.pool.when_free(self, lambda: self.resume(Pause.MEMORY))

    # Pausing

    def hold(self) -> None:
        """Do not read from the client until `let_go`."""
        self.pause(Pause.TOO_EARLY)

    def let_go(self) -> None:
        """Read from the client that was held."""
        self.resume(Pause.TOO_EARLY)

    def pause(self, reason: int) -> None:
        self.pauses |= reason
        if not self._may_read:
            self._stop_reading()

    @property
    def _may_read(self) -> bool:
        """Whether bytes may be read from the socket: invariants 3 and 4."""
        return not self.pauses & ~(Pause.IN_FLIGHT | Pause.QUEUED) and self._received.has_space

    def _stop_reading(self) -> None:
        if not self._is_reading_paused and self._transport is not None:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def resume(self, reason: int) -> None:
        """Take this reason away, and go on after the current callback if no reason is left."""
        if reason != Pause.FAIRNESS:
            self.pauses &= ~reason
        self._listener.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self.pauses &= ~Pause.FAIRNESS
        if not self.pauses:
            self._listener.fair_turns.take(self)

    def wait_for_turn(self) -> None:
        self.pause(Pause.QUEUED)

    def take_turn(self) -> None:
        self.pauses &= ~Pause.QUEUED
        if self.pauses:
            return  # whatever takes the reason away asks for a turn again
        self._listener.turns.run(self._take_frames)
        if self._is_reading_paused and self._may_read and self._transport is not None:
            self._is_reading_paused = False
            self._transport.resume_reading()

    # Time

    def check_time(self, now_ms: int) -> None:
        """Called about once a second: close an idle connection, and a connection that is too slow in either
        direction."""
        idle_times = self._idle_times
        limits = self._listener.limits
        received = self._received
        is_in_the_way = received.is_large and not self.pauses and self._listener.pool.is_short
        frame_ms = limits.frame_time_ms(received.announced_bytes, is_in_the_way=is_in_the_way)
        if not self.is_open:
            if idle_times.age("closing", True, now_ms) > 5_000:
                self.abort(None)
            return
        answers, heard, self._heard_from = self.answers, self._heard_from, False
        is_idle = not heard and not answers.in_progress and not answers.unsent_bytes and self._throttle is None
        is_mid_frame = received.end > received.start and not self.pauses & ~Pause.MEMORY
        if idle_times.age("idle", is_idle, now_ms) > limits.idle_ms:
            self.close(f"idle for {limits.idle_ms} ms")
        elif idle_times.age(("frame", answers.next_slot), is_mid_frame, now_ms) > frame_ms:
            self.close(f"a frame was not complete after {frame_ms} ms")
        elif idle_times.age(
            ("answer", answers.next_answer), self._may_miss_end, now_ms
        ) > _UNANSWERED_MS and has_hung_up(self._transport):
            self.close("the client has gone while its requests waited")
        elif idle_times.age(("unsent", answers.sent_bytes), answers.unsent_bytes > 0, now_ms) > limits.stall_ms:
            self.abort(f"answers were not taken for {limits.stall_ms} ms")

    @property
    def _may_miss_end(self) -> bool:
        """Whether a hang-up would not be noticed: nothing is read, and requests wait or the client is throttled."""
        return self._is_reading_paused and (self.answers.in_progress > 0 or self._throttle is not None)

    def abort(self, reason: str | None) -> None:
        """Close without sending the queued answers; None: the reason was reported already."""
        self.pauses |= Pause.CLOSED
        if reason is not None:
            self._listener.report(self, reason)
        if self._transport is not None:
            self._transport.abort()
