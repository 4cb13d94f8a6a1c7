"""The common part of programs that load nodes while the nodes are killed (`crash.node.load` and others)."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import confluent_kafka

import tailrace

DEADLINE_S: Final = 120
REPORT_EVERY_S: Final = 0.02
_TESTS: Final = Path(__file__).parents[1]
IMPORT_PATH: Final = os.pathsep.join(map(str, (_TESTS, _TESTS.parent, Path(tailrace.__file__).parents[1])))
"""The PYTHONPATH of a process that imports these tests."""


class Program:
    """The history, the reports, and the end of a program."""

    def __init__(self, history: Path) -> None:
        self._history = history.open("a", encoding="utf-8")
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._next_report = 0.0
        self.done = 0
        threading.Thread(target=self._wait_for_end, daemon=True).start()

    def _wait_for_end(self) -> None:
        os.read(sys.stdin.fileno(), 1)  # not sys.stdin: its lock would hinder an end that does not wait
        self._ended.set()

    @property
    def goes_on(self) -> bool:
        return not self._ended.is_set()

    def note(self, op: str, **facts: Any) -> None:
        """Add to the history. From any thread."""
        with self._lock:
            self._history.write(json.dumps({"op": op, **facts}) + "\n")

    def report(self, in_flight: int = 0) -> None:
        """Tell the test how far it is, not too often."""
        now = time.monotonic()
        if now >= self._next_report:
            self._next_report = now + REPORT_EVERY_S
            sys.stdout.write(json.dumps({"done": self.done, "in_flight": in_flight}) + "\n")
            sys.stdout.flush()

    def close(self) -> None:
        self._history.close()


def text_of(value: bytes | None) -> str:
    """`producer:number`, as histories have it, of a value that may be padded with dots."""
    return (value or b"").decode().rstrip(".")


def note_polled(
    program: Program, reader: str, messages: Iterable[confluent_kafka.Message]
) -> dict[tuple[str, int], int]:
    """Add these records to the history. The offsets behind the last record of each partition."""
    polled: dict[tuple[str, int], list[confluent_kafka.Message]] = {}
    for message in messages:
        polled.setdefault((str(message.topic()), known(message.partition())), []).append(message)
    for (topic, partition), records in polled.items():
        program.note(
            "polled",
            reader=reader,
            topic=topic,
            partition=partition,
            offsets=[record.offset() for record in records],
            keys=[None if (key := record.key()) is None else bytes(key).decode() for record in records],
            values=[text_of(record.value()) for record in records],
            at_s=time.monotonic(),
        )
    return {place: known(records[-1].offset()) + 1 for place, records in polled.items()}


def known(number: int | None) -> int:
    assert number is not None
    return number


def next_instance(settings: Mapping[str, Any]) -> confluent_kafka.Producer:
    """The next instance of a transactional producer, which fences the instance before."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        producer = confluent_kafka.Producer(dict(settings))
        try:
            producer.init_transactions(10)
        except confluent_kafka.KafkaException:
            if time.monotonic() > deadline:
                raise
        else:
            return producer
