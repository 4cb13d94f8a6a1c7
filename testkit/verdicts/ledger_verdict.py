"""The verdict on a ledger of transactions: each broken promise as a sentence that begins with its kind.

| Kind | Broken promise |
|---|---|
| differs | all readers get the same records at the same offsets, in the same order |
| lost | a transaction whose commit was acknowledged is there |
| aborted read | nothing of an aborted transaction is read, at the end or by another transaction (G1a) |
| dirty read | no record is read before its commit was requested, or by its own transaction, or vanishes afterwards |
| torn | a transaction is there whole or not at all |
| repeated | a record is there once |
| invented | each record is of a transaction that a client began |
| reordered | the records of a client stand in the order of sending, in each partition |
| intermediate read | of the records in a stretch of a partition, a transaction reads all or none (G1b) |
| cycle | no two transactions read each other's records, directly or through other transactions (G1c) |
| sum | the amounts of all accounts sum to zero |
| not copied | each record of a source below the offset of its group is copied |
| copied again | a record of a source is copied once, and no record at or above the offset of the group is copied |

The names in parentheses are Adya's, as Jepsen uses them for Kafka. Only cycles of reads are faults: in Kafka the writes
of transactions may interleave (G0). `write_cycles` counts the cycles of writes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Final

from testkit.verdicts.ledger import ABORTED, ACCOUNTS, COMMITTED, COPIES, Entry, LedgerEvidence, Place, Reading

DIFFERS: Final = "differs"
LOST: Final = "lost"
ABORTED_READ: Final = "aborted read"
DIRTY: Final = "dirty read"
TORN: Final = "torn"
REPEATED: Final = "repeated"
INVENTED: Final = "invented"
REORDERED: Final = "reordered"
INTERMEDIATE: Final = "intermediate read"
CYCLE: Final = "cycle"
SUM: Final = "sum"
NOT_COPIED: Final = "not copied"
COPIED_AGAIN: Final = "copied again"
KINDS: Final = (
    DIFFERS,
    LOST,
    ABORTED_READ,
    DIRTY,
    TORN,
    REPEATED,
    INVENTED,
    REORDERED,
    INTERMEDIATE,
    CYCLE,
    SUM,
    NOT_COPIED,
    COPIED_AGAIN,
)


def broken_promises(evidence: LedgerEvidence) -> list[str]:
    """Every broken promise to each reader. Readers with equal readings are judged once."""
    faults: list[str] = []
    judged: list[Reading] = []
    for reader, reading in evidence.readings.items():
        if reading in judged:
            continue
        if judged:
            first = next(iter(evidence.readings))
            faults += _differences(first, judged[0], reader, reading)
        judged.append(reading)
        faults += [f"{fault} [{reader}]" for fault in _faults_of(evidence, reading)]
    return faults


def _faults_of(evidence: LedgerEvidence, reading: Reading) -> Iterator[str]:
    yield from _outcomes(evidence, reading)
    yield from _orders(evidence, reading)
    yield from _sights(evidence, reading)
    yield from _cycles(reading)
    yield from _sums(reading)
    yield from _copies(evidence, reading)


def _differences(first: str, expected: Reading, reader: str, reading: Reading) -> Iterator[str]:
    for place in sorted({*expected, *reading}):
        wanted, found = expected.get(place, ()), reading.get(place, ())
        if wanted == found:
            continue
        at = next((rank for rank, pair in enumerate(zip(wanted, found, strict=False)) if pair[0] != pair[1]), None)
        rank = min(len(wanted), len(found)) if at is None else at
        here, there = (_text(records[rank : rank + 1]) for records in (wanted, found))
        yield f"{DIFFERS}: {_name(place)}: {first} has {here}, {reader} has {there} as record {rank}"


def _text(records: Sequence[tuple[int, Entry]]) -> str:
    return "nothing" if not records else f"{records[0][1].transaction}:{records[0][1].index} at {records[0][0]}"


def _outcomes(evidence: LedgerEvidence, reading: Reading) -> Iterator[str]:
    found: Counter[tuple[str, int]] = Counter()
    sizes: dict[str, int] = {}
    for records in reading.values():
        for _, entry in records:
            found[entry.transaction, entry.index] += 1
            sizes[entry.transaction] = entry.size
    counts = Counter(name for name, _ in found)
    for (name, index), count in found.items():
        if count > 1:
            yield f"{REPEATED}: {name}:{index} is there {count} times"
    for name, size in sizes.items():
        attempt = evidence.attempts.get(name)
        if attempt is None:
            yield f"{INVENTED}: {name}"
        elif attempt.outcome == ABORTED:
            yield f"{ABORTED_READ}: {name}"
        elif attempt.commit_ns is None:
            yield f"{DIRTY}: {name}, whose commit was not requested"
        if counts[name] != size:
            yield f"{TORN}: {counts[name]} of the {size} records of {name}"
    for name, attempt in evidence.attempts.items():
        if attempt.outcome == COMMITTED and name not in sizes:
            yield f"{LOST}: {name}"


def _orders(evidence: LedgerEvidence, reading: Reading) -> Iterator[str]:
    for place, records in reading.items():
        latest: dict[str, tuple[int, int, int]] = {}
        for offset, entry in records:
            attempt = evidence.attempts.get(entry.transaction)
            if attempt is None:
                continue
            rank = attempt.life, attempt.number, entry.index
            if rank < latest.get(attempt.client, rank):
                yield f"{REORDERED}: {entry.transaction}:{entry.index} at {offset} of {_name(place)}"
            latest[attempt.client] = rank


def _sights(evidence: LedgerEvidence, reading: Reading) -> Iterator[str]:
    """The faults of reads of transactions, judged by the records that this reader has got."""
    accounts = {place.partition: records for place, records in reading.items() if place.topic == ACCOUNTS}
    at = {number: dict(records) for number, records in accounts.items()}
    ranks = {number: {offset: rank for rank, (offset, _) in enumerate(records)} for number, records in accounts.items()}
    for reader, entry in _transfers(reading):
        if entry.sight is None:
            continue
        seen: dict[int, list[int]] = defaultdict(list)
        for partition, offset, name in entry.sight.observations:
            seen[partition].append(offset)
            attempt = evidence.attempts.get(name)
            there = at.get(partition, {}).get(offset)
            if name == reader:
                yield f"{DIRTY}: {name} by itself"
            elif attempt is not None and attempt.outcome == ABORTED:
                yield f"{ABORTED_READ}: {name} by {reader}"
            elif there is None or there.transaction != name:
                yield f"{DIRTY}: {name} at {offset} of {ACCOUNTS}-{partition} by {reader}, where it is not"
            elif attempt is not None and (attempt.commit_ns is None or entry.sight.at_ns < attempt.commit_ns):
                yield f"{DIRTY}: {name} by {reader}, before its commit was requested"
        for partition, offsets in seen.items():
            if skipped := _skipped(offsets, accounts.get(partition, ()), ranks.get(partition, {})):
                yield f"{INTERMEDIATE}: {reader} has not got {skipped} in {ACCOUNTS}-{partition}"


def _skipped(offsets: Sequence[int], records: Sequence[tuple[int, Entry]], ranks: Mapping[int, int]) -> str:
    """The first record between the first and the last of these offsets that is missing among them."""
    known = [ranks[offset] for offset in offsets if offset in ranks]
    if not known:
        return ""
    got = set(known)
    missing = next((rank for rank in range(known[0], known[-1]) if rank not in got), None)
    return "" if missing is None else _text(records[missing : missing + 1])


def _transfers(reading: Reading) -> Iterator[tuple[str, Entry]]:
    for place, records in reading.items():
        if place.topic == ACCOUNTS:
            for _, entry in records:
                yield entry.transaction, entry


def _cycles(reading: Reading) -> Iterator[str]:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for reader, entry in _transfers(reading):
        if entry.sight is not None:
            sorter.add(reader, *{observation.transaction for observation in entry.sight.observations} - {reader})
    try:
        sorter.prepare()
    except CycleError as fault:
        _, cycle = fault.args
        yield f"{CYCLE}: {' is read by '.join(cycle)}"


def _sums(reading: Reading) -> Iterator[str]:
    total = sum(entry.amount for _, entry in _transfers(reading))
    if total:
        yield f"{SUM}: {total}"


def _copies(evidence: LedgerEvidence, reading: Reading) -> Iterator[str]:
    copied: dict[str, Counter[int]] = defaultdict(Counter)
    for place, records in reading.items():
        for _, entry in records:
            if place.topic == COPIES and entry.copied is not None:
                client, offset = entry.copied
                copied[client][offset] += 1
    for client in sorted({*copied, *evidence.copied_to}):
        end, counts = evidence.copied_to.get(client, 0), copied[client]
        if missing := [offset for offset in range(end) if not counts[offset]]:
            yield f"{NOT_COPIED}: {len(missing)} records of {client} below {end}, from {missing[0]} on"
        if again := sorted(offset for offset, count in counts.items() if count > 1 or offset >= end):
            yield f"{COPIED_AGAIN}: {len(again)} records of {client}, or beyond {end}: from {again[0]} on"


def write_cycles(reading: Reading) -> int:
    """The pairs of transactions that are neighbours in one account and in the other order in another account (G0),
    which is legal."""
    ranks: dict[str, dict[Place, int]] = defaultdict(dict)
    for place, records in reading.items():
        for rank, (_, entry) in enumerate(records):
            ranks[entry.transaction].setdefault(place, rank)
    turned: set[tuple[str, str]] = set()
    for records in reading.values():
        for (_, before), (_, after) in pairwise(records):
            earlier, later = ranks[before.transaction], ranks[after.transaction]
            if before.transaction != after.transaction and any(
                earlier[place] > later[place] for place in earlier.keys() & later
            ):
                turned.add((before.transaction, after.transaction))
    return len(turned)


def _name(place: Place) -> str:
    return f"{place.topic}-{place.partition}"
