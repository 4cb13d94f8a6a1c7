"""Members that come and go in a group that shares one partition by key: how long slots and keys wait (KIP-X)."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from benchmarks.lines.key_ranges.slot_group import SLOTS, SlotGroup, one_partition
from benchmarks.loads.slot_member import Call, Ledger, SlotChange, value_of
from benchmarks.peers.peer import TAILRACE, Peer, running, tailrace
from benchmarks.results.figures import Column, Section, Target, percentile
from benchmarks.results.rounds import Rounds
from tailrace.client.blocking import Producer

NAME = "joins"
DEFAULT = 256
"""Keys, and records a second."""
LANES: Final = 16
HANDLER_MS: Final = 1.0
LONG_MS: Final = 25_000.0
LONG_KEYS: Final = 8
MOST_S: Final = 1.0
JOIN, JOIN_BUSY = "a member joins", "a member joins while calls of 25 s run"
LEAVE_BUSY = "a member leaves while calls of 25 s run"
_SETTLE_S: Final = 2.0
_PHASE_S: Final = 8.0

CONDITIONS = (
    f"One node with default settings, one partition; members are processes with a keyed consumer, slots={SLOTS}, "
    f"{LANES} lanes and a grace of 60 s. Each key has a record a second, with a handler of {HANDLER_MS:.0f} ms. "
    f"A third member joins two members. Then the handler has {LONG_KEYS} keys for {LONG_MS / 1000:.0f} s, and a fourth "
    f"member joins; {_PHASE_S:.0f} s later the third member leaves in an orderly way, after the end of its own calls. "
    "It is asserted that each record is handled once, in the order of its key, and that no call is cancelled. Move of "
    "a slot: from the answer that takes the slot from its owner, whose calls in the slot have ended, to the time at "
    "which the new member reads the slot. Pause of a key: from the write of a record to its call. Keys of a slot that "
    "moves wait for the call of 25 s in their slot, and the keys of these calls wait too: their pauses are not in the "
    "table. A member that stays learns of a leaver at its next heartbeat, 500 ms apart for members that share by key."
)


def measure(rounds: Rounds, keys: int) -> Section:
    with running(tailrace("page-cache")) as peer:
        for number in rounds:
            name = f"joins-{number}"
            with one_partition(peer, name) as topic, SlotGroup(peer, topic, name, lanes=LANES) as group:
                _record(rounds, *_run(peer, topic, group, keys))
    targets = [
        Target(test=JOIN, server=TAILRACE, quantity="move_p99_s", limit=MOST_S, unit="s", is_upper=True),
        *(
            Target(test=test, server=TAILRACE, quantity="longest_pause_s", limit=MOST_S, unit="s", is_upper=True)
            for test in (JOIN, JOIN_BUSY, LEAVE_BUSY)
        ),
    ]
    columns = (
        Column("move_p99_s", "move of a slot, p99, s", digits=2, shows_rounds=True),
        Column("longest_pause_s", "longest pause of a key, s", digits=2, shows_rounds=True),
        Column("pause_p99_s", "pause, p99, s", digits=3),
    )
    return rounds.section(NAME, "Members that come and go", CONDITIONS, columns, targets)


class Times(NamedTuple):
    """The times of the events of a round."""

    joined: float
    long_calls: float
    joined_busy: float
    left_busy: float


def _run(peer: Peer, topic: str, group: SlotGroup, keys: int) -> tuple[Ledger, Times]:
    group.start("a", "b")
    group.wait_for_slots("a", "b")
    with RecordStream(peer, topic, keys) as stream:
        time.sleep(_SETTLE_S)
        joined = time.monotonic()
        group.start("c")
        group.wait_for_slots("a", "b", "c")
        time.sleep(_SETTLE_S)
        long_calls = time.monotonic()
        stream.write_long()
        time.sleep(_SETTLE_S)
        joined_busy = time.monotonic()
        group.start("d")
        time.sleep(_PHASE_S)
        left_busy = time.monotonic()
        group.stop("c")
        time.sleep(max(long_calls + LONG_MS / 1000 + 2 * _SETTLE_S - time.monotonic(), 0))
    group.wait_until(lambda ledger: len(ledger.calls) >= stream.written, "all records")
    ledger = group.stop_all()
    fault = ledger.fault_of_order()
    assert fault is None, fault
    assert len(ledger.calls) == stream.written, f"{len(ledger.calls)} calls for {stream.written} records"
    assert all(call.ended for call in ledger.calls), "no call is cancelled"
    return ledger, Times(joined, long_calls, joined_busy, left_busy)


class RecordStream:
    """Writes a record of each key a second, in a thread."""

    def __init__(self, peer: Peer, topic: str, keys: int) -> None:
        self._peer = peer
        self._topic = topic
        self._keys = keys
        self._numbers: Counter[int] = Counter()
        self._long: set[int] = set()
        """The keys that have had a long record."""
        self._has_long = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.written = 0

    def __enter__(self) -> "RecordStream":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def write_long(self) -> None:
        """Let the next records of some keys be long."""
        self._has_long.set()

    def _write(self) -> None:
        with Producer(self._peer.address, linger_ms=0) as producer:
            for key in self._paced():
                is_long = self._has_long.is_set() and len(self._long) < LONG_KEYS and key not in self._long
                if is_long:
                    self._long.add(key)
                value = value_of(self._numbers[key], LONG_MS if is_long else HANDLER_MS)
                producer.send(self._topic, value, key=b"key-%d" % key)
                self._numbers[key] += 1
                self.written += 1

    def _paced(self) -> Iterator[int]:
        began, number = time.monotonic(), 0
        while not self._is_over.is_set():
            yield number % self._keys
            number += 1
            time.sleep(max(began + number / self._keys - time.monotonic(), 0))


def _record(rounds: Rounds, ledger: Ledger, times: Times) -> None:
    moves = [at - asked for asked, at in _moves(ledger, "c", times.joined, times.long_calls)]
    long = [call for call in ledger.calls if call.ended - call.began > LONG_MS / 2_000]
    for test, start, end in (
        (JOIN, times.joined, times.long_calls),
        (JOIN_BUSY, times.joined_busy, times.left_busy - MOST_S),  # a record that is late then is beyond the limit
        (LEAVE_BUSY, times.left_busy, ledger.calls[-1].began),
    ):
        pauses = [
            call.began - call.written
            for call in ledger.calls
            if start <= call.written < end and not _waits_for_long_call(call, long)
        ]
        of_slots = {"move_p99_s": percentile(moves, 99)} if test == JOIN else {}
        rounds.record(test, TAILRACE, longest_pause_s=max(pauses), pause_p99_s=percentile(pauses, 99), **of_slots)


def _moves(ledger: Ledger, member: str, since: float, until: float) -> Iterator[tuple[float, float]]:
    """For each slot that the member gets from another member: the time of the answer that takes the slot from that
    member, and the time at which this member reads the slot."""
    for slot in _last(ledger.owned, member, until):
        got = next(change.at for change in _of(ledger.owned, member, since) if slot in change.slots)
        asked = [
            change.at
            for change in ledger.targets
            if change.member != member
            and since <= change.at <= got
            and slot not in change.slots
            and slot in _last(ledger.owned, change.member, since)
        ]
        yield max(asked), got


def _of(changes: Sequence[SlotChange], member: str, since: float) -> Iterator[SlotChange]:
    return (change for change in changes if change.member == member and change.at >= since)


def _last(changes: Sequence[SlotChange], member: str, before: float) -> frozenset[int]:
    """The slots of a member at this time."""
    known = [change.slots for change in changes if change.member == member and change.at < before]
    return known[-1] if known else frozenset()


def _waits_for_long_call(call: Call, long: Sequence[Call]) -> bool:
    """Whether the call had to wait for a long call: of its key, or in its slot by the former owner of the slot."""
    return any(
        (other.key == call.key or (other.slot == call.slot and other.member != call.member))
        and other.ended > call.written
        and other.began < call.began
        for other in long
    )
