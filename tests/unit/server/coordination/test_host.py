"""A third kind of coordinator, by keys that are no strings, on a real partition and a simulated disk."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from tailrace.metadata.image import full_delta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.machines import Decision
from tailrace.protocol.records.record import Record
from tailrace.replication import staging
from tailrace.replication.partition import Partition
from tailrace.server.coordination.coordinator_log import CoordinatorLog
from tailrace.server.coordination.host import CoordinatorHost, CoordinatorService, HostState
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.group_path import GroupPath
from testkit.nodes.data_path import BROKER
from testkit.nodes.ports import HoldingDisk

E = ErrorCode
TOPIC = "counters"


class Key(NamedTuple):
    owner: str
    number: int


@dataclass(frozen=True)
class Add:
    """Raise the counter of a key, not above its limit; less than 1 is refused, 0 reads it."""

    key: Key
    amount: int
    limit: int = 1_000
    padding: int = 0
    """Bytes of the record beside the total."""


@dataclass(frozen=True)
class Total:
    """The record: the counter of a key."""

    key: Key
    value: int
    padding: int = 0


class CounterMachine:
    """The machine. Decisions read the appended records."""

    def __init__(self) -> None:
        self.committed: dict[Key, int] = {}
        self._staged: list[Total] = []

    def apply(self, record: Total) -> None:
        self.committed[record.key] = record.value

    def decide(self, command: Add, now_ms: int) -> Decision[Total, int]:
        if command.amount < 0:
            raise KafkaError(E.INVALID_REQUEST, "counters only rise")
        now = {**self.committed, **{record.key: record.value for record in self._staged}}.get(command.key, 0)
        after = min(now + command.amount, command.limit)
        records = (Total(command.key, after, command.padding),) if after > now else ()
        return Decision(records=records, response=after)

    def stage(self, records: Iterable[Total]) -> None:
        self._staged += records

    def commit(self, records: Sequence[Total]) -> None:
        for record in records:
            self.apply(record)
        self.discard(records)

    def discard(self, records: Sequence[Total]) -> None:
        self._staged = [staged for staged in self._staged if staged not in records]


def _encode(record: Total) -> tuple[bytes, bytes | None]:
    return _text(record.key).encode(), str(record.value).encode() + b" " * record.padding


def _decode(record: Record, _: int) -> Total:
    assert record.key is not None
    assert record.value is not None
    owner, number = record.key.decode().split(":")
    return Total(Key(owner, int(number)), int(record.value))


def _text(key: Key) -> str:
    return f"{key.owner}:{key.number}"


class CountersHost(CoordinatorHost[Key, Add, Total, int]):
    def __init__(self, partition: Partition, *, reads_latest: bool, **ports: Any) -> None:
        self.machine = CounterMachine()
        log = CoordinatorLog(partition, encode=_encode, decode=_decode, timeout_ms=5_000, **ports)
        super().__init__(log, self.machine, keys="counters", reads_latest=reads_latest)
        self.history: list[str] = []

    def has(self, key: Key) -> bool:
        return key in self.machine.committed

    @property
    def key_count(self) -> int:
        return len(self.machine.committed)

    def _activated(self) -> None:
        self.history.append("activated")

    def _closed(self) -> None:
        self.history.append("closed")


class CountersService(CoordinatorService[Key, CountersHost]):
    def __init__(self, node: GroupPath, *, reads_latest: bool = True, max_keys: int = 100) -> None:
        super().__init__(
            TOPIC,
            noun="counter",
            key_text=_text,
            invalid_key=E.INVALID_REQUEST,
            max_keys=max_keys,
            limit="max.counters",
            broker_id=BROKER,
            find_partition=node.table.find,
            clock=node.clock,
        )
        self._reads_latest = reads_latest
        self._node = node
        self.answers: list[int | KafkaError] = []
        self.on_image(node.controller.image, full_delta(node.controller.image))

    def _host(self, partition: Partition) -> CountersHost:
        return CountersHost(partition, reads_latest=self._reads_latest, clock=self._clock, deadlines=self._deadlines)

    def add(self, key: Key, amount: int, **options: int) -> None:
        self.host_of(key).submit(Add(key, amount, **options), self.answers.append)
        self._node.end_turn()

    def refusal(self, key: Key, *, check_limit: bool = False) -> ErrorCode:
        with pytest.raises(KafkaError) as caught:
            self.host_of(key, check_limit=check_limit)
        return caught.value.code


@pytest.fixture
def disk_and_node() -> tuple[HoldingDisk, GroupPath]:
    clock = ManualClock()
    disk = HoldingDisk(clock.call_soon)
    node = GroupPath("/data", files=SimulatedDisk(seed=1), clock=clock, disk=disk)
    node.create_topics(TOPIC, partitions=4)
    return disk, node


@pytest.fixture
def node(disk_and_node: tuple[HoldingDisk, GroupPath]) -> GroupPath:
    return disk_and_node[1]


ONE, OTHER = Key("a", 1), Key("b", 2)


def test_committed_records_are_there_after_the_next_load(node: GroupPath, caplog: pytest.LogCaptureFixture) -> None:
    first = CountersService(node)
    assert first.refusal(ONE) is E.COORDINATOR_LOAD_IN_PROGRESS
    node.clock.advance(0)
    for key, amount in ((ONE, 2), (OTHER, 3), (ONE, 5), (ONE, 0), (ONE, -1)):
        first.add(key, amount)
    assert first.answers[:4] == [2, 3, 7, 7]
    assert isinstance(first.answers[4], KafkaError)
    first.close()
    assert first.refusal(ONE) is E.NOT_COORDINATOR
    with caplog.at_level(logging.INFO, logger="tailrace.server"):
        second = CountersService(node)
        node.clock.advance(0)
    assert caplog.text.count("event=coordinator-loaded") == 2
    assert "counters=1" in caplog.text
    assert {k: v for host in second.active_hosts() for k, v in host.machine.committed.items()} == {ONE: 7, OTHER: 3}


def test_a_key_has_to_fit_and_to_find_room(node: GroupPath) -> None:
    counters = CountersService(node, max_keys=1)
    node.clock.advance(0)
    counters.add(ONE, 1)
    assert counters.host_of(ONE, check_limit=True) is counters.host_of(ONE)
    assert counters.refusal(OTHER, check_limit=True) is E.INVALID_REQUEST
    assert counters.host_of(OTHER).is_active, "that is for requests that would make it"
    assert counters.refusal(Key("x" * 8192, 1)) is E.INVALID_REQUEST


def _fail(outcome: int | KafkaError) -> None:
    raise RuntimeError(outcome)


@pytest.mark.parametrize("reads_latest", [True, False])
def test_an_answer_waits_for_the_records_it_may_rest_on(
    disk_and_node: tuple[HoldingDisk, GroupPath], reads_latest: bool
) -> None:
    disk, node = disk_and_node
    counters = CountersService(node, reads_latest=reads_latest)
    node.clock.advance(0)
    disk.holds = True
    counters.add(ONE, 2)
    counters.add(ONE, 0)
    assert counters.answers == ([] if reads_latest else [2])
    disk.run()
    node.end_turn()
    assert counters.answers == [2, 2]


def test_an_answer_fails_with_any_write_that_it_may_rest_on(node: GroupPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "LARGEST_OWN_BATCH", 1 << 20)
    counters = CountersService(node)
    node.clock.advance(0)
    host = counters.host_of(ONE)
    for command in (Add(ONE, 1, padding=2**21), Add(ONE, 1), Add(ONE, 0)):
        host.submit(command, counters.answers.append)
    assert counters.answers == []
    node.end_turn()
    too_large, read, total = counters.answers
    assert isinstance(too_large, KafkaError)
    assert isinstance(read, KafkaError), "it waits for the second write, and was decided on the first one too"
    assert total == 2
    counters.add(ONE, 0)
    assert counters.answers[3:] == [2]


def test_waiting_requests_are_refused_once_when_the_leadership_ends(
    disk_and_node: tuple[HoldingDisk, GroupPath], caplog: pytest.LogCaptureFixture
) -> None:
    disk, node = disk_and_node
    counters = CountersService(node)
    node.clock.advance(0)
    disk.holds = True
    counters.host_of(ONE).submit(Add(ONE, 1), _fail)
    counters.add(ONE, 1)
    host = counters.host_of(ONE)
    host.close()
    host.close()
    (refused,) = counters.answers
    assert isinstance(refused, KafkaError)
    assert refused.code is E.NOT_COORDINATOR
    assert "event=answer-failed" in caplog.text, "the first answer failed, and cost the second one nothing"
    assert (host.state, host.history) == (HostState.CLOSED, ["activated", "closed"])
    host.submit(Add(ONE, 1), counters.answers.append)
    assert isinstance(counters.answers[1], KafkaError), (
        "a request that kept the host is refused like a request that waited"
    )
    assert counters.answers[1].code is E.NOT_COORDINATOR


def test_a_sweep_repeats_each_command_until_it_writes_nothing_more(node: GroupPath) -> None:
    counters = CountersService(node)
    node.clock.advance(0)
    host = counters.host_of(ONE)
    host.decide_until_done((Add(ONE, 1, limit=3), Add(ONE, 2, limit=6)))
    for _ in range(10):
        node.end_turn()
    assert host.machine.committed == {ONE: 6}
    host.decide_until_done((Add(ONE, -1), Add(ONE, 1)))
    node.end_turn()
    assert host.machine.committed == {ONE: 6}, "a refusal ends the sweep"
