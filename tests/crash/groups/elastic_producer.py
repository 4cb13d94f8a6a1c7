"""The writer of an elastic group's topic: records of many keys, with a number for each record of a key."""

import random
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress

from crash.groups.elastic_member import TOPIC, slot_of_key
from tailrace.client.blocking import Producer
from tailrace.client.writing.outgoing import RecordMetadata
from tailrace.model.errors import KafkaError
from testkit.verdicts.elastic_verdict import NumberedRecord, SlotRecord

KEYS = 300
PAUSE_S = 0.008


class NumberingProducer:
    """Writes until it is stopped, without the times in which it is paused; knows the acknowledged records."""

    def __init__(self, servers: str, chance: random.Random) -> None:
        self._producer = Producer(servers, acks="all", linger_ms=2, delivery_timeout_ms=300_000)
        self._chance = chance
        self._numbers: Counter[str] = Counter()
        self._acknowledged: dict[SlotRecord, NumberedRecord] = {}
        self._ends: dict[int, int] = {}
        self._unanswered = 0
        self._answered = threading.Condition()
        self._may_write = threading.Event()
        self._is_ending = threading.Event()
        self._may_write.set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_ending.wait(PAUSE_S):
            with self._lock, suppress(KafkaError):
                if self._may_write.is_set():
                    self._write(f"key-{self._chance.randrange(KEYS)}")

    def _write(self, key: str) -> None:
        written = NumberedRecord(key, self._numbers[key])
        self._numbers[key] += 1
        future = self._producer.send(TOPIC, str(written.number).encode(), key=key.encode())
        with self._answered:
            self._unanswered += 1
        future.add_done_callback(lambda done: self._note(written, done))

    def _note(self, written: NumberedRecord, done: "Future[RecordMetadata]") -> None:
        with self._answered:
            self._unanswered -= 1
            self._answered.notify_all()
            if done.cancelled() or done.exception() is not None:
                return
            stored = done.result()
            slot = slot_of_key(stored.partition, written.key.encode())
            self._acknowledged[SlotRecord(slot, stored.offset)] = written
            self._ends[slot] = max(self._ends.get(slot, 0), stored.offset + 1)

    def pause(self) -> Mapping[int, int]:
        """Write nothing more for now; the offsets behind the last acknowledged record of each slot."""
        self._may_write.clear()
        with self._lock:
            self._producer.flush()
        with self._answered:
            self._answered.wait_for(lambda: not self._unanswered)
            return dict(self._ends)

    def resume(self) -> None:
        self._may_write.set()

    def stop(self) -> Mapping[SlotRecord, NumberedRecord]:
        """Stop; the acknowledged records."""
        self._is_ending.set()
        self._thread.join()
        self._producer.close()
        return dict(self._acknowledged)
