"""A handler that does nothing, called for each record of a topic, in a process of its own.

`python -m benchmarks.loads.handlers threads|asyncio keyed|by-hand|by-hand-over-ours BOOTSTRAP TOPIC GROUP COUNT` prints
as JSON the records a second and the CPU time of the process in microseconds a record, both from the first call of the
handler to the last. `keyed` is a keyed consumer. `by-hand` is the least that a user writes over confluent-kafka for the
same order: a queue for each key, and threads or tasks that empty the queues, without commits, retries and rebalances;
`by-hand-over-ours` is the same over `tailrace.Consumer`.
"""

import asyncio
import json
import queue
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import confluent_kafka

from tailrace import Consumer, KeyedConsumer, KeyedRecord

LANES = 16
MOST_IN_HAND = 1_000
_CHUNK = 500

Lane = tuple[int, bytes | None]
Read = Callable[[float], list[tuple[Lane, Any]]]
"""The next records with their lanes, after so many seconds at most."""


class Stopwatch:
    """Counts calls of a handler, and takes the times at the first call and at the last."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._began = (0.0, 0.0)
        self._took = (0.0, 0.0)
        self.calls = 0

    def call(self) -> bool:
        """Count a call; True at the last."""
        with self._lock:
            self.calls += 1
            number = self.calls
        if number == 1:
            self._began = _times()
        if number != self._count:
            return False
        self._took = _since(self._began)
        return True

    @property
    def result(self) -> dict[str, float]:
        wall, cpu = self._took
        return {"rate": self._count / wall, "cpu_us": cpu / self._count * 1e6}


def _times() -> tuple[float, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), used.ru_utime + used.ru_stime


def _since(began: tuple[float, float]) -> tuple[float, float]:
    wall, cpu = _times()
    return wall - began[0], cpu - began[1]


def keyed(kind: str, bootstrap: str, topic: str, group: str, count: int) -> dict[str, float]:
    """A keyed consumer with a plain function, or with a coroutine function."""
    watch = Stopwatch(count)
    consumer = KeyedConsumer(bootstrap, group=group, topics=[topic])

    def handle(record: KeyedRecord) -> None:
        if watch.call():
            consumer.stop()

    async def handle_on_the_loop(record: KeyedRecord) -> None:
        if watch.call():
            consumer.stop()

    handler: Any = handle if kind == "threads" else handle_on_the_loop
    consumer.run(handler, concurrency=LANES)
    return watch.result


def by_hand(kind: str, bootstrap: str, topic: str, group: str, count: int) -> dict[str, float]:
    """Lanes over confluent-kafka."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])

    def read(timeout_s: float) -> list[tuple[Lane, Any]]:
        return [((message.partition(), message.key()), message) for message in consumer.consume(_CHUNK, timeout_s)]

    result = _in_lanes(kind, read, count)
    consumer.close()
    return result


def by_hand_over_ours(kind: str, bootstrap: str, topic: str, group: str, count: int) -> dict[str, float]:
    """Lanes over our own consumer."""
    with Consumer(
        bootstrap, group=group, topics=[topic], auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:

        def read(timeout_s: float) -> list[tuple[Lane, Any]]:
            records = consumer.poll(timeout_s, max_records=_CHUNK)
            return [((record.partition, record.key), record) for record in records]

        return _in_lanes(kind, read, count)


def _in_lanes(kind: str, read: Read, count: int) -> dict[str, float]:
    watch = Stopwatch(count)
    if kind == "threads":
        _work_in_threads(read, watch, count)
    else:
        asyncio.run(_work_on_a_loop(read, watch, count))
    return watch.result


def _work_in_threads(read: Read, watch: Stopwatch, count: int) -> None:
    lanes: dict[Lane, deque[Any]] = {}
    ready: queue.SimpleQueue[Lane | None] = queue.SimpleQueue()
    lock = threading.Lock()
    done = 0

    def work() -> None:
        nonlocal done
        while (lane := ready.get()) is not None:
            with lock:
                lanes[lane][0]
            watch.call()
            with lock:
                records = lanes[lane]
                records.popleft()
                done += 1
                if records:
                    ready.put(lane)
                else:
                    del lanes[lane]

    for _ in range(LANES):
        threading.Thread(target=work, daemon=True).start()
    begun = 0
    while done < count:
        if begun - done > MOST_IN_HAND:
            time.sleep(0.0005)
            continue
        for lane, message in read(0.1):
            begun += 1
            with lock:
                records = lanes.get(lane)
                if records is None:
                    lanes[lane] = deque((message,))
                    ready.put(lane)
                else:
                    records.append(message)


async def _work_on_a_loop(read: Read, watch: Stopwatch, count: int) -> None:
    lanes: dict[Lane, deque[Any]] = {}
    tasks: set[asyncio.Task[None]] = set()
    places = asyncio.Semaphore(LANES)
    done = begun = 0

    async def handle(message: Any) -> None:
        watch.call()

    async def work(lane: Lane) -> None:
        nonlocal done
        records = lanes[lane]
        while records:
            async with places:
                await handle(records[0])
            records.popleft()
            done += 1
        del lanes[lane]

    while done < count:
        if begun - done < MOST_IN_HAND:
            for lane, message in read(0 if begun > done else 0.1):
                begun += 1
                if lane in lanes:
                    lanes[lane].append(message)
                else:
                    lanes[lane] = deque((message,))
                    task = asyncio.create_task(work(lane))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
        await asyncio.sleep(0)


if __name__ == "__main__":
    kind, client, bootstrap, topic, group, count = sys.argv[1:]
    works = {"keyed": keyed, "by-hand": by_hand, "by-hand-over-ours": by_hand_over_ours}
    print(json.dumps(works[client](kind, bootstrap, topic, group, int(count))))
