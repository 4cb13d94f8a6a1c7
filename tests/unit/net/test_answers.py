"""Answers are given in any order and written in the order of the requests."""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from tailrace.net.answers import AnswerQueue
from tailrace.net.limits import ListenerLimits
from tailrace.net.pauses import Pause
from tailrace.net.turns import Turns


class SilentTransport:
    """Keeps the written bytes."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, chunks: Sequence[bytes]) -> None:
        self.written += b"".join(chunks)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


class SilentlyFullTransport(SilentTransport):
    """Keeps the bytes and does not pause its protocol in `writelines`, as asyncio's in Python 3.13.0; new limits make
    it compare, as every transport does."""

    def __init__(self, pause_writing: Callable[[], None]) -> None:
        super().__init__()
        self._pause_writing = pause_writing
        self.chunks: list[bytes] = []

    def writelines(self, chunks: Sequence[bytes]) -> None:
        super().writelines(chunks)
        self.chunks += chunks

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        if self.get_write_buffer_size() > high:
            self._pause_writing()


class AnsweredClient:
    """A connection that notes why it is paused."""

    def __init__(self) -> None:
        self.pauses = 0

    def pause(self, reason: int) -> None:
        self.pauses |= reason

    def resume(self, reason: int) -> None:
        self.pauses &= ~reason

    def close(self, reason: str) -> None:
        raise AssertionError(reason)

    def abort(self, reason: str | None) -> None:
        raise AssertionError(reason)


class AnsweringListener:
    """A listener whose turns end when the test says so."""

    is_transport_copying = False

    def __init__(self) -> None:
        self.limits = ListenerLimits()
        self.planned: list[Callable[[], None]] = []
        self.turns = Turns(
            call_soon=self.planned.append, on_broken_invariant=self._raise, on_stall=lambda work, seconds: None
        )

    def _raise(self, broken: BaseException) -> None:
        raise broken

    def end_turn(self) -> None:
        planned, self.planned[:] = list(self.planned), []
        for work in planned:
            work()


def queue_of(requests: int) -> tuple[AnswerQueue, AnsweredClient, AnsweringListener, SilentTransport]:
    client, listener, transport = AnsweredClient(), AnsweringListener(), SilentTransport()
    answers = AnswerQueue(client, listener)
    answers.attach(cast(asyncio.Transport, transport))
    answers.next_slot = requests
    return answers, client, listener, transport


def test_answers_leave_in_the_order_of_their_slots_in_one_write() -> None:
    answers, _, listener, transport = queue_of(4)
    answers.answer(2, [b"c"])
    answers.answer(1, None)
    assert answers.in_progress == 4
    assert [slot for slot in range(4) if answers.awaits(slot)] == [0, 3]
    answers.answer(0, [b"a", b"b"])
    assert answers.in_progress == 1
    assert transport.written == b""
    listener.end_turn()
    assert transport.written == b"\0\0\0\2ab\0\0\0\1c"
    assert answers.is_empty


def test_large_answers_behind_a_missing_one_pause_the_connection_until_it_comes() -> None:
    answers, client, listener, _ = queue_of(3)
    answers.answer(1, [bytes(1 << 20)])
    assert client.pauses == 0
    answers.answer(2, [b"x"])
    assert client.pauses == Pause.OUT_OF_ORDER
    answers.answer(0, [b"y"])
    assert client.pauses == Pause.SLOW_READER
    listener.end_turn()
    assert client.pauses == 0


def test_an_answer_to_a_closed_connection_is_dropped() -> None:
    answers, _, listener, transport = queue_of(2)
    answers.answer(1, [b"b"])
    answers.end()
    answers.answer(0, [b"a"])
    listener.end_turn()
    assert transport.written == b""
    assert answers.in_progress == 2


def test_answers_wait_while_the_transport_is_full_also_if_writelines_does_not_say_so() -> None:
    answers, client, listener, _ = queue_of(3)
    full = SilentlyFullTransport(lambda: setattr(answers, "is_write_blocked", True))
    answers.attach(cast(asyncio.Transport, full))
    answers.set_write_high_water(100_000)
    answers.answer(0, [bytes(99_000)])
    listener.end_turn()
    assert not answers.is_write_blocked
    answers.answer(1, [bytes(99_000)])
    listener.end_turn()
    assert answers.is_write_blocked
    answers.answer(2, [bytes(2 << 20)])
    listener.end_turn()
    assert len(full.written) < 200_000, "the last answer waits in the queue"
    assert client.pauses == Pause.SLOW_READER


def test_the_last_chunk_that_a_transport_gets_has_bytes() -> None:
    answers, _, listener, _ = queue_of(1)
    transport = SilentlyFullTransport(lambda: None)
    answers.attach(cast(asyncio.Transport, transport))
    answers.answer(0, [bytes(99_000), b"", b"end", b"", b""])
    listener.end_turn()
    assert transport.written[-3:] == b"end"
    assert transport.chunks[-1] == b"end"
