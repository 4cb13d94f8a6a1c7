"""A program of the ledger for each Python client: `python -m crash.ledger.program PLAN`.

It works, or reads, until its stdin ends. An error that its client cannot go on from ends it: its successor begins anew.
"""

import json
import os
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from crash.ledger.client import FROM_NOW, CannotGoOn, LedgerClient, MustAbort, Received
from crash.ledger.plan import ABORT_EVERY, END, OF_ONE_COPY, READ, SIGHT, ProgramPlan, accounts_of
from testkit.verdicts.ledger import ABORTED, ACCOUNTS, COMMITTED, COPIES, COPY, TRANSFER, UNKNOWN, Place

_LOOK_S = 0.02
_WAIT_S = 0.2


class Lines:
    """The file of a program: each line is one write, so that a program that is killed leaves whole lines."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, op: str, **facts: Any) -> None:
        self.write({"op": op, "at": time.monotonic_ns(), **facts})

    def write(self, *facts: Any) -> None:
        os.write(self._descriptor, "".join(json.dumps(fact) + "\n" for fact in facts).encode())


class LedgerWorker:
    """The transactions of one life of a client, one after the other."""

    def __init__(self, plan: ProgramPlan, client: LedgerClient, diary: Lines) -> None:
        self._plan = plan
        self._client = client
        self._diary = diary
        self._number = 0
        self._inputs: deque[Received] = deque()
        """Records of the source that are read and not copied."""
        self._seen: dict[int, deque[Received]] = defaultdict(lambda: deque(maxlen=SIGHT))

    def run(self, is_over: Callable[[], bool]) -> None:
        source = Place(self._plan.source, 0)
        self._client.initialize()
        self._source = self._client.reader({source: self._client.committed(source)})
        accounts = range(self._plan.partitions[ACCOUNTS])
        self._accounts = self._client.reader({Place(ACCOUNTS, number): FROM_NOW for number in accounts})
        self._diary.note("ready")
        while not is_over():
            self._number += 1
            inputs = self._next_inputs() if self._number % 2 else []
            if not self._transact(f"{self._plan.client}-{self._plan.life}-{self._number}", inputs):
                self._inputs.extendleft(reversed(inputs))
            self._client.pause(self._plan.pause_ms / 1_000)

    def _next_inputs(self) -> list[Received]:
        if len(self._inputs) < OF_ONE_COPY:
            self._inputs.extend(self._source.poll(_LOOK_S))
        return [self._inputs.popleft() for _ in range(min(OF_ONE_COPY, len(self._inputs)))]

    def _transact(self, name: str, inputs: list[Received]) -> bool:
        """Whether it is committed."""
        self._diary.note("began", name=name, number=self._number, kind=COPY if inputs else TRANSFER)
        commits = self._number % ABORT_EVERY != 0
        try:
            commits = self._write(name, inputs, commits=commits) and commits
            if not commits:
                self._client.abort()
        except CannotGoOn:
            self._diary.note("ended", name=name, outcome=UNKNOWN)
            raise
        self._diary.note("ended", name=name, outcome=COMMITTED if commits else ABORTED)
        return commits

    def _write(self, name: str, inputs: list[Received], *, commits: bool) -> bool:
        """Whether nothing has happened after which the transaction can only be aborted."""
        try:
            self._client.begin()
            if inputs:
                self._copy(name, inputs)
            else:
                self._transfer(name)
            if commits:
                self._diary.note("commits", name=name)
                self._client.commit()
        except MustAbort as fault:
            self._diary.note("error", name=name, fatal=False, why=str(fault))
            return False
        return True

    def _copy(self, name: str, inputs: list[Received]) -> None:
        for index, record in enumerate(inputs):
            copied = [self._plan.client, record.offset]
            place = Place(COPIES, record.offset % self._plan.partitions[COPIES])
            self._send(place, t=name, i=index, of=len(inputs), copied=copied)
        self._client.commit_offset(Place(self._plan.source, 0), inputs[-1].offset + 1)

    def _transfer(self, name: str) -> None:
        payer, payee = accounts_of(self._number, self._plan.partitions[ACCOUNTS])
        amount = self._number % 97 + 2
        self._send(Place(ACCOUNTS, payer), t=name, i=0, of=3, amount=-amount)
        self._client.flush()
        for record in self._accounts.poll(_LOOK_S):
            self._seen[record.place.partition].append(record)
        at_ns = time.monotonic_ns()
        saw = [
            [partition, record.offset, json.loads(record.value)["t"]]
            for partition, records in self._seen.items()
            for record in records
        ]
        self._seen.clear()
        self._send(Place(ACCOUNTS, payee), t=name, i=1, of=3, amount=amount - 1, at=at_ns, saw=saw)
        self._send(Place(ACCOUNTS, payer), t=name, i=2, of=3, amount=1)

    def _send(self, place: Place, **fields: Any) -> None:
        self._client.send(place, json.dumps(fields).encode())


def read(plan: ProgramPlan, client: LedgerClient, lines: Lines) -> None:
    """Write down all records up to the last one of each partition."""
    reader = client.reader(dict.fromkeys(plan.places, 0))
    left = set(plan.places)
    while left:
        received = reader.poll(_WAIT_S)
        lines.write(*([*record.place, record.offset, record.value.decode()] for record in received))
        left -= {record.place for record in received if record.value == END.encode()}
    reader.close()


def new_client(plan: ProgramPlan) -> LedgerClient:
    """The client of this name. Its library is loaded here alone."""
    if plan.client.startswith("tailrace"):
        from crash.ledger.with_tailrace import TailraceClient

        return TailraceClient(plan)
    if plan.client == "librdkafka":
        from crash.ledger.with_librdkafka import LibrdkafkaClient

        return LibrdkafkaClient(plan)
    if plan.client == "kafka-python":
        from crash.ledger.with_kafka_python import KafkaPythonClient

        return KafkaPythonClient(plan)
    from crash.ledger.with_aiokafka import AiokafkaClient

    return AiokafkaClient(plan)


def main() -> None:
    plan = ProgramPlan.from_json(sys.argv[1])
    lines = Lines(plan.output)
    ended = threading.Event()

    def wait_for_end() -> None:
        os.read(sys.stdin.fileno(), 1)
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    if plan.role != READ:
        lines.note("alive")
    client = new_client(plan)
    if plan.role == READ:
        read(plan, client, lines)
    else:
        try:
            LedgerWorker(plan, client, lines).run(ended.is_set)
        except (MustAbort, CannotGoOn) as fault:
            lines.note("error", fatal=True, why=str(fault))
            sys.stderr.write(f"{fault}\n")
            sys.stderr.flush()
            os._exit(1)  # as a process that ends at once: no client brings anything to an end
        lines.note("over")
        client.close()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
