"""A handler of 10 ms a record in one process: sixteen lanes beside one (KIP-X)."""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from benchmarks.peers.peer import TAILRACE, Peer, running, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from tailrace.client.blocking import Producer
from tailrace.client.keyed.keyed_consumer import AsyncKeyedConsumer
from tailrace.client.keyed.outcomes import KeyedRecord

NAME = "lanes"
DEFAULT = 1_600
"""The number of records of a round with sixteen lanes; a single lane gets a sixteenth of that number."""
LANES: Final = 16
KEYS: Final = 400
PARTITIONS: Final = 2
HANDLER_S: Final = 0.01
LEAST_TIMES_ONE = 12.0
TOPIC = "lanes"

CONDITIONS = (
    f"One node, {PARTITIONS} partitions, {KEYS} keys, records of 100 B; one process with a keyed consumer, whose "
    f"handler waits for {HANDLER_S * 1000:.0f} ms: asleep on the event loop, or in a thread. The order of each key is "
    "asserted for each record. Rate: from the first call of the handler to the end of the last call. Ratio: to one "
    "lane in the same round."
)


class OrderCheck:
    """Counts records, and stops at a record that is not the next record of its key, or comes while another record of
    its key is in work."""

    def __init__(self, wanted: int, stop: Callable[[], None]) -> None:
        self._wanted = wanted
        self._stop = stop
        self._lock = threading.Lock()
        self._next: dict[bytes | None, int] = defaultdict(int)
        self._running: set[bytes | None] = set()
        self._began_at = 0.0
        self.done = 0
        self.rate = 0.0
        """Records a second."""
        self.fault: str | None = None

    def begin(self, record: KeyedRecord) -> None:
        with self._lock:
            self._began_at = self._began_at or time.perf_counter()
            if record.key in self._running or int(record.value) != self._next[record.key]:
                self.fault = f"{record.key!r}: {int(record.value)} where {self._next[record.key]} is due"
                self._stop()
            self._running.add(record.key)
            self._next[record.key] += 1

    def end(self, record: KeyedRecord) -> None:
        with self._lock:
            self._running.discard(record.key)
            self.done += 1
            if self.done == self._wanted:
                self.rate = self.done / (time.perf_counter() - self._began_at)
                self._stop()


def measure(rounds: Rounds, count: int) -> Section:
    with running(tailrace("page-cache")) as peer:
        write(peer, count)
        for number in rounds:
            for kind in ("asyncio", "threads"):
                alone = _rate(peer, kind, 1, max(count // LANES, 1), f"{kind}-{number}-one")
                many = _rate(peer, kind, LANES, count, f"{kind}-{number}-many")
                rounds.record(f"{kind}, one lane", TAILRACE, rate=alone, times_one=1.0)
                rounds.record(f"{kind}, {LANES} lanes", TAILRACE, rate=many, times_one=many / alone)
    columns = (Column("rate", "records/s"), Column("times_one", "x one lane", digits=2, shows_rounds=True))
    targets = [
        Target(
            test=f"{kind}, {LANES} lanes",
            server=TAILRACE,
            quantity="times_one",
            limit=LEAST_TIMES_ONE,
            unit="x one lane",
        )
        for kind in ("asyncio", "threads")
    ]
    return rounds.section(
        NAME,
        "Lanes: 10 ms a record",
        CONDITIONS,
        columns,
        targets,
        chart=Chart("times_one", "records a second, x one lane, median; points are rounds"),
    )


def write(peer: Peer, count: int) -> None:
    """Write so many records; the values of a key count up."""
    peer.create_topics({TOPIC: PARTITIONS})
    peer.wait_for_leaders({TOPIC: PARTITIONS})
    written: Mapping[bytes, list[int]] = defaultdict(list)
    with Producer(peer.address) as producer:
        for number in range(count):
            key = b"key-%d" % (number % KEYS)
            written[key].append(number)
            producer.send(TOPIC, b"%0100d" % (len(written[key]) - 1), key=key)


def _rate(peer: Peer, kind: str, lanes: int, count: int, group: str) -> float:
    """Records a second of a new group, up to so many records."""
    check = asyncio.run(_run(peer, kind, lanes, count, group))
    assert check.fault is None, check.fault
    assert check.done >= count, f"{check.done} of {count} records"
    return check.rate


async def _run(peer: Peer, kind: str, lanes: int, count: int, group: str) -> OrderCheck:
    consumer = AsyncKeyedConsumer(peer.address, group=group, topics=[TOPIC])
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.call_soon_threadsafe(consumer.stop)

    check = OrderCheck(count, stop)

    async def on_the_loop(record: KeyedRecord) -> None:
        check.begin(record)
        await asyncio.sleep(HANDLER_S)
        check.end(record)

    def in_a_thread(record: KeyedRecord) -> None:
        check.begin(record)
        time.sleep(HANDLER_S)
        check.end(record)

    handler: Any = on_the_loop if kind == "asyncio" else in_a_thread
    await consumer.run(handler, concurrency=lanes)
    return check
