"""A member of a group whose members share a topic by key, in a process of its own, until SIGTERM.

`python -m benchmarks.loads.slot_member BOOTSTRAP TOPIC GROUP SLOTS LANES LEDGER` writes a line of JSON into LEDGER for
each call of the handler, each target that the coordinator gives the member, and each change of its slots. A record's
value has the number of the record in its key, the ms that the handler takes, and the time of the write. Times are those
of the machine's monotonic clock, in seconds.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tailrace import KeyedRecord
from tailrace.aio import KeyedConsumer
from tailrace.client.group import consumer_host
from tailrace.client.group.consumer_member import (
    ConsumerEffect,
    ConsumerEvent,
    ConsumerMembership,
    Own,
    Partitions,
    TargetGiven,
)

GRACE_MS: Final = 60_000


class Call(NamedTuple):
    """A call of the handler."""

    member: str
    key: str
    number: int
    slot: int
    written: float
    began: float
    ended: float
    """0: the call was cancelled."""


class SlotChange(NamedTuple):
    """The slots of a member from a time on."""

    member: str
    at: float
    slots: frozenset[int]


class Ledger(NamedTuple):
    """The lines of all members."""

    calls: Sequence[Call]
    targets: Sequence[SlotChange]
    """The slots that the coordinator wants a member to have."""
    owned: Sequence[SlotChange]

    @classmethod
    def read(cls, directory: Path) -> "Ledger":
        """The ledgers of a directory."""
        calls: list[Call] = []
        changes: dict[str, list[SlotChange]] = {"target": [], "own": []}
        for path in directory.glob("*.ledger"):
            for line in path.read_text().splitlines():
                kind, *content = json.loads(line)
                if kind == "call":
                    calls.append(Call(path.stem, *content))
                else:
                    changes[kind].append(SlotChange(path.stem, content[0], frozenset(content[1])))
        by_time = [sorted(found, key=lambda change: change.at) for found in changes.values()]
        return cls(sorted(calls, key=lambda call: call.began), *by_time)

    def slots_of(self, member: str) -> frozenset[int]:
        """The last known slots of a member."""
        return next((change.slots for change in reversed(self.owned) if change.member == member), frozenset())

    def fault_of_order(self) -> str | None:
        """The first call that is not for the next record of its key, or that begins before the call before has ended;
        None without such a call."""
        last: dict[str, Call] = {}
        for call in self.calls:
            before = last.get(call.key)
            expected = 0 if before is None else before.number + 1
            if call.number != expected:
                return f"{call} where {expected} is due"
            if before is not None and not 0 < before.ended <= call.began:
                return f"{call} begins before {before} has ended"
            last[call.key] = call
        return None


def value_of(number: int, handler_ms: float) -> bytes:
    """The value of a record that is written now."""
    return json.dumps([number, handler_ms, time.monotonic()]).encode()


class Writer:
    """Writes the ledger of this process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, kind: str, *content: object) -> None:
        with self._path.open("a") as ledger:
            ledger.write(json.dumps([kind, *content]) + "\n")


def note_memberships(writer: Writer) -> None:
    """Note the targets and the slots of the members of this process."""

    def numbers(partitions: Partitions) -> list[int]:
        return sorted(each.partition for each in partitions)

    class NotedMembership(ConsumerMembership):
        def step(self, event: ConsumerEvent, now_ms: int) -> Sequence[ConsumerEffect]:
            if isinstance(event, TargetGiven):
                writer.write("target", time.monotonic(), numbers(event.partitions))
            effects = super().step(event, now_ms)
            for effect in effects:
                if isinstance(effect, Own):
                    writer.write("own", time.monotonic(), numbers(effect.partitions))
            return effects

    vars(consumer_host)["ConsumerMembership"] = NotedMembership


async def work(bootstrap: str, topic: str, group: str, slots: int, lanes: int, writer: Writer) -> None:
    """Work until SIGTERM."""
    consumer = KeyedConsumer(
        bootstrap, group=group, topics=[topic], slots=slots, grace_ms=GRACE_MS, group_protocol="consumer"
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)

    async def handle(record: KeyedRecord) -> None:
        number, handler_ms, written = json.loads(record.value or b"")
        began, ended = time.monotonic(), 0.0
        try:
            await asyncio.sleep(handler_ms / 1_000)
            ended = time.monotonic()
        finally:
            writer.write("call", (record.key or b"").decode(), number, record.slot, written, began, ended)

    await consumer.run(handle, concurrency=lanes)


def main() -> None:
    bootstrap, topic, group, slots, lanes, ledger = sys.argv[1:]
    writer = Writer(Path(ledger))
    note_memberships(writer)
    made: Any = work(bootstrap, topic, group, int(slots), int(lanes), writer)
    asyncio.run(made)


if __name__ == "__main__":
    main()
