"""Members that share one partition by key: eight members beside one member, 10 ms a record (KIP-X)."""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from benchmarks.lines.key_ranges.slot_group import SLOTS, SlotGroup, one_partition
from benchmarks.loads.slot_member import Ledger, value_of
from benchmarks.peers.peer import TAILRACE, Peer, running, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from tailrace.client.blocking import Producer

NAME = "elastic"
DEFAULT = 8_000
"""Records of a round with eight members."""
MEMBERS: Final = 8
HANDLER_MS: Final = 10
KEYS: Final = 2_000
SKEW: Final = 0.8
LEAST_TIMES_ONE: Final = 7.5
UNIFORM, ZIPF = "uniform keys", f"Zipf({SKEW}) keys"

CONDITIONS = (
    f"One node, one partition, {KEYS:,} keys. Each member is a process with a keyed consumer, slots={SLOTS} and one "
    f"lane, whose handler sleeps for {HANDLER_MS} ms. The records are written when each member has its share of the "
    "slots. The order of each key is asserted for each record, and that no record is repeated. Rate: while all members "
    "have work, that is from the time at which all have begun to the time at which the first has ended. To the end: "
    "all records, until the last member has ended. Ratios: to one member in the same round."
)


def measure(rounds: Rounds, count: int) -> Section:
    with running(tailrace("page-cache")) as peer:
        for number in rounds:
            for kind in (UNIFORM, ZIPF):
                alone, one_to_end = _rates(peer, f"one-{number}-{kind[0]}", kind, 1, count // MEMBERS)
                rate, to_end = _rates(peer, f"all-{number}-{kind[0]}", kind, MEMBERS, count)
                rounds.record(f"{kind}, one member", TAILRACE, rate=alone, times_one=1.0, times_one_to_the_end=1.0)
                rounds.record(
                    f"{kind}, {MEMBERS} members",
                    TAILRACE,
                    rate=rate,
                    times_one=rate / alone,
                    times_one_to_the_end=to_end / one_to_end,
                )
    target = Target(
        test=f"{UNIFORM}, {MEMBERS} members",
        server=TAILRACE,
        quantity="times_one",
        limit=LEAST_TIMES_ONE,
        unit="x one member",
    )
    return rounds.section(
        NAME,
        f"{MEMBERS} members share one partition: {HANDLER_MS} ms a record",
        CONDITIONS,
        (
            Column("rate", "records/s"),
            Column("times_one", "x one member", digits=2, shows_rounds=True),
            Column("times_one_to_the_end", "x one member, to the end", digits=2),
        ),
        [target],
        chart=Chart("times_one", "records a second, x one member, median; points are rounds"),
    )


def _rates(peer: Peer, name: str, kind: str, members: int, count: int) -> tuple[float, float]:
    """Records a second while all members have work, and to the end."""
    names = [f"member-{number}" for number in range(members)]
    with one_partition(peer, name) as topic, SlotGroup(peer, topic, name, lanes=1) as group:
        group.start(*names)
        group.wait_for_slots(*names)
        _write(peer, topic, kind, count)
        group.wait_until(lambda ledger: len(ledger.calls) >= count, f"{count} records")
        ledger = group.stop_all()
    fault = ledger.fault_of_order()
    assert fault is None, fault
    assert len(ledger.calls) == count, f"{len(ledger.calls)} calls for {count} records"
    return _rate_with_work(ledger), count / (max(call.ended for call in ledger.calls) - ledger.calls[0].began)


def _rate_with_work(ledger: Ledger) -> float:
    members = {call.member for call in ledger.calls}
    of_members = [[call for call in ledger.calls if call.member == member] for member in members]
    start = max(calls[0].began for calls in of_members)
    end = min(calls[-1].ended for calls in of_members)
    return sum(start <= call.began and call.ended <= end for call in ledger.calls) / (end - start)


def _write(peer: Peer, topic: str, kind: str, count: int) -> None:
    numbers: Counter[int] = Counter()
    with Producer(peer.address) as producer:
        for key in _keys(kind, count):
            producer.send(topic, value_of(numbers[key], HANDLER_MS), key=b"key-%d" % key)
            numbers[key] += 1


def _keys(kind: str, count: int) -> Iterator[int]:
    chooses = random.Random(count)
    weights = accumulate((rank + 1) ** -SKEW if kind == ZIPF else 1.0 for rank in range(KEYS))
    yield from chooses.choices(range(KEYS), cum_weights=list(weights), k=count)
