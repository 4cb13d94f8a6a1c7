"""Fetch sessions of readers of views, which know nothing of key ranges."""

from typing import Any

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tailrace.storage.keys.log_keys import LogKeys
from testkit.nodes.view_readers import ViewNode, batches_of, offsets_of
from unit.server.fetch.views.view_keys import KEYS, VIEW, key_in


@pytest.fixture
def node() -> ViewNode:
    return ViewNode()


def test_other_partitions_have_their_turn_while_a_session_scans_for_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    node = ViewNode(partitions=2, settings={"key.range.fetch.max.scan.bytes": "1024"})
    for _ in range(9):
        node.write(*[key_in(1)] * 9, value=bytes(200))
        node.write(*[key_in(0)] * 9, value=bytes(200), partition=1)
    node.write(key_in(0))
    monkeypatch.setattr(node.broker.readable_views.key_reads, "chunk_bytes", 1)
    session = ViewSession(node)
    session.open({0: 0, 4: 0})
    found = [session.next().get(4) for _ in range(3)]
    assert any(data is not None and data.records for data in found)


def share_orders(node: ViewNode, value: str) -> None:
    change = IncrementallyAlterableConfig(name="key.ranges.enable", config_operation=0, value=value)
    resource = IncrementalAlterConfigsResource(resource_type=2, resource_name="orders", configs=(change,))
    node.send(IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False), 1)


@pytest.mark.parametrize(("version", "code"), [(12, 3), (17, 100)])
def test_a_session_of_a_view_learns_that_the_topic_has_no_more_ranges(node: ViewNode, version: int, code: int) -> None:
    node.write(*KEYS)
    session = ViewSession(node, version=version)
    (data,) = session.open({0: 0}).values()
    session.next({0: batches_of(data)[-1][0].end_offset})
    assert session.next() == {}
    share_orders(node, "false")
    assert session.next()[0].error_code == code
    share_orders(node, "true")
    assert session.next()[0].error_code == 0


def test_a_session_of_a_view_at_the_end_of_the_log_learns_that_it_is_gone(node: ViewNode) -> None:
    """The last answer has the offsets of the partition itself: for a topic nothing else is looked at."""
    node.write(key_in(0))
    session = ViewSession(node)
    session.open({0: 0})
    assert session.next({0: 1}) == {}
    share_orders(node, "false")
    assert session.next()[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


class ViewSession:
    """A reader of a view with a fetch session."""

    def __init__(self, node: ViewNode, *, version: int = 17, view: str = VIEW) -> None:
        self.node, self.version, self.view = node, version, view
        self.id = self.epoch = 0

    def send(self, offsets: dict[int, int], **options: Any) -> Any:
        by_id = self.version >= 13
        wanted = tuple(
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
            for number, offset in offsets.items()
        )
        topic = FetchTopic(
            topic="" if by_id else self.view,
            topic_id=self.node.view_id(self.view) if by_id else bytes(16),
            partitions=wanted,
        )
        request = FetchRequest(
            max_wait_ms=options.get("max_wait_ms", 0),
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=self.id,
            session_epoch=self.epoch,
            topics=(topic,) if wanted else (),
        )
        return self.node.send(request, self.version)

    def open(self, offsets: dict[int, int]) -> dict[int, PartitionData]:
        response = self.send(offsets).response
        assert response.error_code == 0
        self.id, self.epoch = response.session_id, 1
        return answers(response)

    def next(self, offsets: dict[int, int] | None = None, **options: Any) -> dict[int, PartitionData]:
        return answers(self.begin(offsets, **options).response)

    def begin(self, offsets: dict[int, int] | None = None, **options: Any) -> Any:
        exchange = self.send(offsets or {}, **options)
        self.epoch += 1
        return exchange


def answers(response: Any) -> dict[int, PartitionData]:
    assert response.error_code == 0
    return {data.partition_index: data for topic in response.responses for data in topic.partitions}


@pytest.mark.parametrize("version", [*range(7, 19)])
def test_a_session_reads_a_view(node: ViewNode, version: int) -> None:
    session = ViewSession(node, version=version)
    positions = dict.fromkeys(range(4), 0)
    opened = session.open(positions)
    assert all(not data.records for data in opened.values())
    found: dict[int, list[int]] = {number: [] for number in range(4)}
    for first in range(0, len(KEYS), 5):
        node.write(*KEYS[first : first + 5])
        moved: dict[int, int] = {}
        while True:
            data_of = session.next(moved)
            moved = {}
            for number, data in data_of.items():
                assert (data.applied_key_ranges, data.scanned_to) == ((), -1)
                for header, records in batches_of(data):
                    found[number] += [record.offset for record in records if record.offset >= positions[number]]
                    moved[number] = positions[number] = header.end_offset
            if not moved:
                break
    for number in range(4):
        assert found[number] == offsets_of(KEYS, number, 4)
        assert positions[number] == node.end(VIEW, number)
    assert session.next() == {}
    kept = next(iter(node.broker.fetch_sessions.cache.sessions()))
    assert not kept.due


def test_a_waiting_session_of_a_view_wakes_for_records_of_its_partitions_alone(node: ViewNode) -> None:
    session = ViewSession(node)
    session.open({0: 0})
    waiting = session.begin(max_wait_ms=500)
    node.write(key_in(1), key_in(2))
    assert not waiting.is_answered
    node.write(key_in(1), key_in(0))
    (data,) = answers(waiting.response).values()
    assert [record.offset for _, records in batches_of(data) for record in records] == [3]


def test_a_waiting_session_of_a_view_learns_at_last_that_an_end_is_not_known(
    node: ViewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ViewSession(node)
    session.open({0: 0})
    monkeypatch.setattr(LogKeys, "end", lambda self, *wanted: None)
    monkeypatch.setattr(LogKeys, "index_on", lambda self, monotonic_ms: False)
    node.write(*KEYS)
    waiting = session.begin(max_wait_ms=500)
    node.clock.advance(499)
    assert not waiting.is_answered
    node.clock.advance(1)
    assert answers(waiting.response)[0].error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    monkeypatch.undo()
    (data,) = session.next().values()
    assert [record.offset for _, records in batches_of(data) for record in records] == offsets_of(KEYS, 0, 4)
