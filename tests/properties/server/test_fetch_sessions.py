"""An incremental fetch has the news that a full scan of its session finds, in the same order, whatever happens between.

The model of a session is a list: the partitions in their order, with the reader's knowledge. The scan is a
full fetch of all of them, in that order and with the same limit, at the moment at which the session is answered.

A full fetch knows nothing of earlier fetches. So the scan lacks the errors of offsets that are not available and that a
session has waited for long enough over several fetches, each answered early with changes of other partitions: the model
permits these errors from the time at which they are due, at the place of their partitions in the order.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.fetch_session.session import SessionPartition
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import BROKER, DataPath, Exchange, topic_id_of
from testkit.nodes.ports import DeferredDisk, RecordingConnection

TOPICS = ("a", "b")
PARTITIONS = 3
KEYS = [(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
KEY = st.sampled_from(KEYS)
Key = tuple[str, int]
LARGE = 1 << 20
WAIT_MS = 500
"""The max.wait of a fetch that waits."""


class Known(NamedTuple):
    """The reader's knowledge of one partition."""

    high_watermark: int
    log_start_offset: int


class Model:
    """A session as the text of KIP-227 has it."""

    def __init__(self) -> None:
        self.wanted: dict[Key, int] = {}  # in order, with the offset
        self.known: dict[Key, Known | None] = {}
        self.named_at_ms: dict[Key, int] = {}
        """The time of the last request that named the partition, with its offset."""

    def news(self, scan: list[tuple[Key, PartitionData]], *, max_bytes: int) -> list[tuple[Key, PartitionData]]:
        """The part of a full scan that the answer has; a full answer has nothing of the partitions behind."""
        found: list[tuple[Key, PartitionData]] = []
        size_bytes = 0
        for key, data in scan:
            if size_bytes and size_bytes >= max_bytes:
                break
            size_bytes += len(data.records or b"")
            if data.error_code or data.records or self.known[key] != Known(data.high_watermark, data.log_start_offset):
                found.append((key, data))
        return found

    def take(self, answer: list[tuple[Key, PartitionData]]) -> None:
        for key, data in answer:
            self.known[key] = None if data.error_code else Known(data.high_watermark, data.log_start_offset)
            if data.records:
                self.wanted[key] = self.wanted.pop(key)


class FetchSessionMachine(RuleBasedStateMachine):
    """A reader with a session, and everything that may happen to its partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = DeferredDisk()
        self.node = DataPath("/logs", files=SimulatedDisk(), disk=self.disk)
        self.epochs = dict.fromkeys(KEYS, 0)
        for topic, number in KEYS:
            self.node.create(topic, partition=number)
        self.version = 17
        self.isolation = 0
        self.session_id = self.epoch = 0
        self.model = Model()
        self.connection = RecordingConnection()
        self.waiting: Exchange | None = None
        self.max_bytes = LARGE
        self.sent_at_ms = self.waits_until_ms = 0
        self.slices = ExitStack()

    @initialize(partitions=st.sampled_from((1, 2, 64)), few=st.sampled_from((1, 64)))
    def read_in_slices(self, partitions: int, few: int) -> None:
        """A step looks at so many partitions, and a fetch of more than a few is made in steps: 64 is the product's
        number for both, and more than there are here."""
        self.slices.enter_context(mock.patch("tailrace.server.fetch.reading._SLICE", partitions))
        for module in ("fetch", "sessions", "waiting"):
            self.slices.enter_context(mock.patch(f"tailrace.server.fetch.{module}.FEW", few))

    def teardown(self) -> None:
        self.slices.close()

    # The partitions

    @rule(key=KEY, count=st.integers(1, 3))
    def produce(self, key: Key, count: int) -> None:
        self.node.produce(key[0], *[b"v"] * count, partition=key[1], acks=1)

    @rule()
    def flush(self) -> None:
        self.disk.run()
        self.node.end_turn()

    @rule(key=KEY, back=st.integers(0, 3))
    def delete_records(self, key: Key, back: int) -> None:
        partition = self.node.table.get(*key)
        if partition.is_leader:
            partition.delete_records(max(partition.log.log_start_offset, partition.high_watermark - back))
            self.node.end_turn()

    @rule(key=KEY, leads=st.booleans())
    def change_role(self, key: Key, leads: bool) -> None:
        self.epochs[key] += 1
        self.node.create(
            key[0],
            partition=key[1],
            leader_epoch=self.epochs[key],
            leader=BROKER if leads else 2,
            replicas=(BROKER, BrokerId(2)),
            in_sync=(BROKER if leads else BrokerId(2),),
        )
        self.node.end_turn()

    # The reader

    def _request(
        self,
        offsets: dict[Key, int],
        forgotten: list[Key],
        *,
        max_wait_ms: int = 0,
        session_id: int = 0,
        session_epoch: int = -1,
    ) -> FetchRequest:
        return FetchRequest(
            max_bytes=self.max_bytes,
            isolation_level=self.isolation,
            min_bytes=1,
            topics=tuple(
                FetchTopic(topic=topic, topic_id=topic_id_of(topic), partitions=(_wanted(number, offset),))
                for (topic, number), offset in offsets.items()
            ),
            forgotten_topics_data=tuple(
                ForgottenTopic(topic=topic, topic_id=topic_id_of(topic), partitions=(number,))
                for topic, number in forgotten
            ),
            max_wait_ms=max_wait_ms,
            session_id=session_id,
            session_epoch=session_epoch,
        )

    def _scan(self) -> list[tuple[Key, PartitionData]]:
        """A full fetch of all partitions of the session, in its order; like that of the session, it may still wait."""
        may_wait = self.node.clock.monotonic_ms() < self.waits_until_ms
        return self._full_fetch(self.model.wanted, max_wait_ms=1 if may_wait else 0)

    def _full_fetch(self, offsets: dict[Key, int], *, max_wait_ms: int) -> list[tuple[Key, PartitionData]]:
        request = self._request(offsets, [], max_wait_ms=max_wait_ms)
        connection = RecordingConnection()
        exchange = self.node.send(request, self.version, connection=connection)
        if exchange.is_answered:
            return _answers(exchange.response)
        connection.hang_up()
        return []

    def _with_due_errors(
        self, scan: list[tuple[Key, PartitionData]], answer: list[tuple[Key, PartitionData]]
    ) -> list[tuple[Key, PartitionData]]:
        """The scan, with the errors of the answer that are due: the reader has waited as long as the fetch permits."""
        last = dict(self._full_fetch(self.model.wanted, max_wait_ms=0))
        due = {
            key
            for key, data in answer
            if data.error_code and self.sent_at_ms - self.model.named_at_ms.get(key, self.sent_at_ms) >= WAIT_MS
        }
        if due and not scan:  # a full fetch would wait: no partition has anything to send, and only errors are to come
            scan = [(key, self._at_end(key) if data.error_code else data) for key, data in last.items()]
        return [(key, last[key] if key in due else data) for key, data in scan]

    def _at_end(self, key: Key) -> PartitionData:
        """The offsets of a partition, without an error."""
        at_end = {key: self.node.table.get(*key).high_watermark}
        return self._full_fetch(at_end, max_wait_ms=0)[0][1]

    @precondition(lambda self: self.waiting is None)
    @rule(
        keys=st.lists(KEY, unique=True, min_size=1),
        offset=st.integers(0, 2),
        version=st.sampled_from((7, 12, 13, 17)),
        isolation=st.integers(0, 1),
    )
    def open(self, keys: list[Key], offset: int, version: int, isolation: int) -> None:
        """Close the session, if any, and begin another session."""
        self.version, self.isolation, self.max_bytes = version, isolation, LARGE
        self.model = Model()
        self.model.wanted = dict.fromkeys(keys, offset)
        self.model.known = dict.fromkeys(keys)
        self.model.named_at_ms = dict.fromkeys(keys, self.node.clock.monotonic_ms())
        request = self._request(self.model.wanted, [], session_id=self.session_id, session_epoch=0)
        response: FetchResponse = self.node.send(request, version, connection=self.connection).response
        assert len(self.node.broker.fetch_sessions.cache) == 1
        self.session_id, self.epoch = response.session_id, 1
        answer = _answers(response)
        assert [key for key, _ in answer] == keys
        for key, data in answer:  # the order of a new session is that of the request
            self.model.known[key] = None if data.error_code else Known(data.high_watermark, data.log_start_offset)

    @precondition(lambda self: self.session_id and self.waiting is None)
    @rule(
        data=st.data(),
        isolation=st.integers(0, 1),
        max_bytes=st.sampled_from((1, LARGE)),
        waits=st.booleans(),
    )
    def fetch(self, data: st.DataObject, isolation: int, max_bytes: int, waits: bool) -> None:
        changed = data.draw(st.dictionaries(KEY, st.integers(0, 6), max_size=3))
        known = [key for key in self.model.wanted if key not in changed]
        forgotten = data.draw(st.lists(st.sampled_from(known), unique=True, max_size=1)) if len(known) > 1 else []
        self.send_fetch(changed, forgotten, isolation=isolation, max_bytes=max_bytes, waits=waits)

    def send_fetch(
        self,
        changed: dict[Key, int],
        forgotten: list[Key],
        *,
        isolation: int = 0,
        max_bytes: int = LARGE,
        waits: bool = False,
    ) -> None:
        """Send the next fetch of the session."""
        self.sent_at_ms = self.node.clock.monotonic_ms()
        for key, offset in changed.items():
            self.model.known.setdefault(key, None)
            self.model.wanted[key] = offset
            self.model.named_at_ms[key] = self.sent_at_ms
        for key in forgotten:
            del self.model.wanted[key], self.model.known[key], self.model.named_at_ms[key]
        self.isolation, self.max_bytes = isolation, max_bytes
        request = self._request(
            changed,
            forgotten,
            session_id=self.session_id,
            session_epoch=self.epoch,
            max_wait_ms=WAIT_MS if waits else 0,
        )
        self.epoch += 1
        self.waits_until_ms = self.sent_at_ms + (WAIT_MS if waits else 0)
        self.waiting = self.node.send(request, self.version, connection=self.connection)

    @rule(ms=st.sampled_from((100, 500)))
    def pass_time(self, ms: int) -> None:
        self.node.clock.advance(ms)

    @precondition(lambda self: self.session_id)
    @rule(skip=st.integers(1, 5))
    def send_a_wrong_epoch(self, skip: int) -> None:
        """A wrong epoch changes nothing."""
        request = self._request(
            {}, list(self.model.wanted), session_id=self.session_id, session_epoch=self.epoch + skip
        )
        response = self.node.send(request, self.version, connection=RecordingConnection()).response
        assert (response.error_code, response.session_id, response.responses) == (71, 0, ())

    @invariant()
    def the_answer_is_that_of_a_full_scan(self) -> None:
        if self.waiting is None:
            return
        scan = self._scan()
        if not self.waiting.is_answered:
            assert not any(data.error_code or data.records for _, data in scan), "there is something to send"
            return
        response = self.waiting.response
        self.waiting = None
        assert (response.error_code, response.session_id) == (0, self.session_id)
        answer = _answers(response)
        expected = self.model.news(self._with_due_errors(scan, answer), max_bytes=self.max_bytes)
        assert answer == expected
        self.model.take(answer)
        self._check_order()

    def _check_order(self) -> None:
        for session in self.node.broker.fetch_sessions.cache.sessions():
            by_rank = sorted(session, key=lambda partition: partition.rank)
            assert [_key(partition) for partition in by_rank] == list(self.model.wanted)


def _key(partition: SessionPartition) -> Key:
    topic = partition.topic
    name = topic if isinstance(topic, str) else topic.rstrip(b"\0").decode()
    return name, partition.partition


def _wanted(number: int, offset: int) -> FetchPartition:
    return FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=LARGE)


def _answers(response: FetchResponse) -> list[tuple[Key, PartitionData]]:
    assert response.error_code == 0
    return [
        ((topic.topic or bytes(topic.topic_id).rstrip(b"\0").decode(), data.partition_index), data)
        for topic in response.responses
        for data in topic.partitions
    ]


TestFetchSessions = FetchSessionMachine.TestCase


@pytest.fixture
def machine() -> Iterator[FetchSessionMachine]:
    """The machine for a course of events that is given, with slices of one partition."""
    machine = FetchSessionMachine()
    machine.read_in_slices(1, few=64)
    yield machine
    machine.teardown()


def test_an_error_that_is_due_comes_beside_the_errors_of_other_partitions(machine: FetchSessionMachine) -> None:
    """The first fetch is answered early with the error of a/1. So the wait for b/0 ends in the second fetch."""
    machine.open([("b", 0)], offset=0, version=12, isolation=0)
    machine.change_role(("b", 0), leads=False)
    machine.send_fetch({("a", 0): 0, ("a", 1): 1, ("b", 0): 1}, [], max_bytes=1, waits=True)
    machine.the_answer_is_that_of_a_full_scan()
    machine.pass_time(WAIT_MS)

    machine.send_fetch({}, [], max_bytes=1, waits=True)
    assert machine.waiting is not None
    answer = _answers(machine.waiting.response)
    machine.the_answer_is_that_of_a_full_scan()

    assert [(key, data.error_code) for key, data in answer] == [(("b", 0), 1), (("a", 1), 1)]


def test_an_error_that_is_due_comes_before_the_records_of_a_partition_behind_it(machine: FetchSessionMachine) -> None:
    keys = [("a", 0), ("a", 1), ("a", 2), ("b", 0)]
    machine.change_role(("a", 1), leads=False)
    machine.open(keys, offset=0, version=17, isolation=0)
    machine.send_fetch({("a", 1): 1}, [], waits=True)
    machine.the_answer_is_that_of_a_full_scan()
    machine.produce(("b", 0), 1)
    machine.flush()
    machine.the_answer_is_that_of_a_full_scan()
    machine.pass_time(WAIT_MS)
    machine.produce(("b", 0), 1)
    machine.flush()

    machine.send_fetch({}, [], max_bytes=1, waits=True)
    assert machine.waiting is not None
    answer = _answers(machine.waiting.response)
    machine.the_answer_is_that_of_a_full_scan()

    assert [(key, data.error_code) for key, data in answer] == [(("a", 1), 1), (("b", 0), 0)]


def test_an_error_is_not_due_before_the_wait_is_over(machine: FetchSessionMachine) -> None:
    machine.change_role(("a", 1), leads=False)
    machine.open([("a", 1), ("b", 0)], offset=0, version=17, isolation=0)
    machine.send_fetch({("a", 1): 1}, [], waits=True)
    machine.pass_time(WAIT_MS - 1)
    machine.the_answer_is_that_of_a_full_scan()
    machine.produce(("b", 0), 1)
    machine.flush()
    assert machine.waiting is not None
    answer = _answers(machine.waiting.response)
    machine.the_answer_is_that_of_a_full_scan()

    assert [(key, data.error_code) for key, data in answer] == [(("b", 0), 0)]
