"""Fetch sessions as a node carries them out. The text's rules, a row each: tests/scenarios/fetch/test_kip_227."""

import pytest

from tailrace.fetch_session.session import UNPROVEN
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.replication.outcomes import READ_COMMITTED, PartitionRead
from tailrace.replication.partition import Partition
from tailrace.storage import ReadLimits
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, topic_id_of
from testkit.nodes.ports import DeferredDisk
from testkit.nodes.session_reader import SessionReader, answers, numbers
from unit.server.fetch.session_readers import ALL, idle, session_of


@pytest.fixture
def node() -> DataPath:
    node = DataPath("/logs", files=SimulatedDisk())
    for number in range(4):
        node.create(partition=number)
    return node


@pytest.fixture(params=[7, 11, 12, 13, 17, 18])
def reader(node: DataPath, request: pytest.FixtureRequest) -> SessionReader:
    return SessionReader(node, version=request.param)


def test_an_idle_session_names_nothing_on_either_side(reader: SessionReader) -> None:
    assert numbers(reader.open(ALL)) == [0, 1, 2, 3]
    for _ in range(3):
        assert reader.next() == []


def test_an_answer_in_a_session_names_the_partition_with_records_alone(reader: SessionReader, node: DataPath) -> None:
    idle(reader)
    node.produce("orders", b"a", partition=2)
    (data,) = reader.next()
    assert (data.partition_index, data.high_watermark) == (2, 1)
    assert data.records
    (again,) = reader.next()  # the reader has not said that it has read them
    assert again.records == data.records
    assert reader.next({2: 1}) == []


def test_a_session_reads_no_clean_partition(
    reader: SessionReader, node: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle(reader)
    reads = recorded_reads(monkeypatch)
    assert reader.next() == []
    node.produce("orders", b"a", partition=3)
    reader.next()
    assert reads == [3]


@pytest.mark.parametrize("isolation", [0, READ_COMMITTED])
def test_a_partition_that_is_named_at_its_end_is_clean_without_a_read(
    node: DataPath, monkeypatch: pytest.MonkeyPatch, isolation: int
) -> None:
    reader = SessionReader(node)
    reader.open(ALL, isolation=isolation)
    reader.next(isolation=isolation)
    node.produce("orders", b"a", partition=2)
    assert numbers(reader.next(isolation=isolation)) == [2]
    reads = recorded_reads(monkeypatch)
    assert reader.next({2: 1}, isolation=isolation) == reader.next(isolation=isolation) == []
    assert reads == []
    (data,) = reader.next({2: 0}, isolation=isolation)  # it goes back
    assert data.records
    assert reads == [2]


def test_a_partition_that_is_named_at_its_end_is_read_if_it_has_news(
    node: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = idle(SessionReader(node))
    node.produce("orders", b"a", partition=2)
    reader.next()
    node.table.get("orders", 2).delete_records(1)
    node.end_turn()
    reads = recorded_reads(monkeypatch)
    (data,) = reader.next({2: 1})
    assert (data.log_start_offset, data.records) == (1, b"")
    assert reads == [2]


def recorded_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions that are read from now on."""
    reads: list[int] = []
    read = Partition.read

    def recorded(partition: Partition, limits: ReadLimits) -> PartitionRead:
        reads.append(partition.topic_partition.partition)
        return read(partition, limits)

    monkeypatch.setattr(Partition, "read", recorded)
    return reads


@pytest.mark.parametrize("partitions", [1, 2, 3, 4])
def test_an_answer_in_a_session_that_is_made_in_slices_is_whole(
    reader: SessionReader, node: DataPath, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr("tailrace.server.fetch.reading._SLICE", partitions)
    idle(reader)
    for number in ALL:
        node.produce("orders", b"a", partition=number)
    response = reader.send().response
    reader.epoch += 1
    assert [len(topic.partitions) for topic in response.responses] == [4]
    assert numbers(answers(response)) == [0, 1, 2, 3]
    size = len(answers(response)[0].records or b"")
    assert node.broker.sent.to_consumers_by_leader == 4 * size  # each is counted once
    assert numbers(reader.next({0: 1, 1: 0, 2: 0, 3: 0}, max_bytes=2 * size)) == [1, 2]
    assert numbers(reader.next({1: 1}, max_bytes=2 * size)) == [3, 2]  # the partitions of an answer come behind
    waiting = reader.send({0: 1, 1: 1, 2: 1, 3: 1}, max_wait_ms=500)
    assert not waiting.is_answered
    node.produce("orders", b"b", partition=3)
    assert numbers(answers(waiting.response)) == [3]
    assert node.broker.sent.to_consumers_by_leader == 9 * size


def with_news_in_two_slices(node: DataPath, monkeypatch: pytest.MonkeyPatch) -> SessionReader:
    """A session that is read one partition at a time, with a record in partitions 0 and 2."""
    monkeypatch.setattr("tailrace.server.fetch.reading._SLICE", 1)
    reader = idle(SessionReader(node))
    node.produce("orders", b"a", partition=0)
    node.produce("orders", b"a", partition=2)
    return reader


def test_a_session_slice_whose_answer_is_not_sure_commits_nothing(
    node: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = with_news_in_two_slices(node, monkeypatch)
    waiting = reader.send(max_wait_ms=500, min_bytes=10_000)
    assert not waiting.is_answered
    assert node.broker.sent.to_consumers_by_leader == 0
    node.clock.advance(500)
    found = answers(waiting.response)
    assert numbers(found) == [0, 2]
    assert node.broker.sent.to_consumers_by_leader == sum(len(data.records or b"") for data in found)


def test_a_fault_in_a_later_slice_closes_the_session(node: DataPath, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = with_news_in_two_slices(node, monkeypatch)
    read = Partition.read

    def broken(partition: Partition, limits: ReadLimits) -> PartitionRead:
        if partition.topic_partition.partition == 2:
            raise RuntimeError("a fault of this program")
        return read(partition, limits)

    monkeypatch.setattr(Partition, "read", broken)
    assert reader.send().response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    monkeypatch.setattr(Partition, "read", read)
    reader.epoch += 1
    assert reader.send().response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_waiting_session_wakes_for_records_and_watches_nothing_twice(reader: SessionReader, node: DataPath) -> None:
    reader.open(ALL)
    waiting = reader.send(max_wait_ms=500)
    reader.epoch += 1
    assert not waiting.is_answered
    node.produce("orders", b"a", partition=1)
    assert numbers(answers(waiting.response)) == [1]
    assert len(node.polls) == len(node.deadlines) == 0


def test_a_waiting_session_is_answered_empty_when_its_time_is_over(reader: SessionReader, node: DataPath) -> None:
    reader.open(ALL)
    waiting = reader.send(max_wait_ms=500)
    node.clock.advance(499)
    assert not waiting.is_answered
    node.clock.advance(1)
    assert (waiting.response.session_id, waiting.response.responses) == (reader.session_id, ())


def test_a_waiting_session_counts_bytes_up_to_the_least(reader: SessionReader, node: DataPath) -> None:
    reader.open(ALL)
    waiting = reader.send(max_wait_ms=500, min_bytes=400)
    appends = 0
    while not waiting.is_answered:
        node.produce("orders", b"v" * 50, partition=appends % 2)
        appends += 1
    assert sum(len(data.records or b"") for data in answers(waiting.response)) >= 400
    assert appends == 4


def test_a_consumer_that_waits_is_not_answered_for_a_change_without_records(node: DataPath) -> None:
    reader = SessionReader(node)
    node.produce("orders", b"a", b"b", partition=1)
    reader.open({0: 0, 1: 2})
    assert reader.next() == []
    waiting = reader.send(max_wait_ms=500)
    reader.epoch += 1
    node.table.get("orders", 1).delete_records(1)
    node.end_turn()
    assert not waiting.is_answered
    node.clock.advance(500)
    (data,) = answers(waiting.response)
    assert (data.partition_index, data.log_start_offset, data.records) == (1, 1, b"")


@pytest.mark.parametrize("has_session", [True, False])
def test_a_log_start_that_moves_with_the_high_watermark_ends_a_fetchs_wait(node: DataPath, has_session: bool) -> None:
    """Both change in one turn, and the bytes alone would not be enough."""
    node.produce("orders", b"a", b"b", partition=1)
    reader = SessionReader(node)
    if has_session:
        reader.open({1: 1})
        reader.next()
    else:
        reader.epoch = -1
    waiting = reader.send({1: 1}, max_wait_ms=500, min_bytes=100_000)
    assert not waiting.is_answered
    node.produce("orders", b"c", partition=1, same_turn=True)
    node.table.write_staged()
    node.table.get("orders", 1).delete_records(2)
    node.end_turn()
    (data,) = answers(waiting.response)
    assert (data.error_code, data.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)


def test_another_isolation_level_of_a_session_is_a_look_at_everything(node: DataPath) -> None:
    reader = idle(SessionReader(node))
    session = session_of(node)
    assert not session.due
    waiting = reader.send(isolation=1, max_wait_ms=10)
    assert not session.due  # all were looked at, and are clean again
    node.clock.advance(10)
    assert waiting.is_answered


def test_a_session_that_lost_its_slot_while_it_waited_is_answered_so_at_once() -> None:
    node = DataPath("/logs", files=SimulatedDisk(), settings={"max.incremental.fetch.session.cache.slots": "1"})
    node.create()
    node.create("large")
    node.create("large", partition=1)
    first, second = SessionReader(node), SessionReader(node, topic="large")
    first.open({0: 0})
    node.clock.advance(120_001)
    first.next()
    waiting = first.send(max_wait_ms=500)
    second.open({0: 0, 1: 0})
    node.end_turn()
    assert waiting.response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(node.polls) == 0
    assert node.broker.fetch_sessions.cache.evictions == 1


def test_a_second_fetch_of_a_session_ends_the_first_with_an_error(node: DataPath) -> None:
    reader = SessionReader(node)
    reader.open(ALL)
    first = reader.send(max_wait_ms=500)
    reader.epoch += 1
    second = reader.send(max_wait_ms=500)
    assert first.response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert not second.is_answered
    node.produce("orders", b"a", partition=3)
    assert numbers(answers(second.response)) == [3]


def test_a_closed_session_watches_nothing(node: DataPath) -> None:
    reader = idle(SessionReader(node))
    replica = node.table.get("orders", 0).replica
    assert replica.watchers is not None
    assert replica.watchers.wanted
    reader.epoch = -1
    assert reader.send().response.session_id == 0
    assert not replica.watchers.wanted
    assert len(node.broker.fetch_sessions.cache) == 0


def test_a_session_gives_records_that_become_committed_later() -> None:
    disk = DeferredDisk()
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create()
    reader = SessionReader(node)
    reader.open({0: 0})
    assert reader.next() == []
    node.produce("orders", b"a", acks=1)
    waiting = reader.send(max_wait_ms=500)
    assert not waiting.is_answered
    disk.run()
    node.end_turn()
    assert numbers(answers(waiting.response)) == [0]


def test_a_closed_connection_leaves_the_session_and_no_poll(node: DataPath) -> None:
    reader = SessionReader(node)
    reader.open(ALL)
    reader.send(max_wait_ms=500)
    reader.connection.hang_up()
    assert len(node.polls) == 0
    session = session_of(node)
    assert session.listener is None


def test_the_saving_of_a_session_is_counted_for_all_that_is_not_named(node: DataPath) -> None:
    reader = idle(SessionReader(node))
    session = session_of(node)
    assert (session.incremental_fetches, session.saved_bytes) == (1, 4 * (33 + 37))
    reader.next({0: 0})
    assert (session.incremental_fetches, session.saved_bytes) == (2, 4 * (33 + 37) + 3 * 33 + 4 * 37)


def test_a_follower_that_is_imitated_gets_no_priority(node: DataPath) -> None:
    reader = SessionReader(node, version=14)
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topics = (FetchTopic(topic_id=topic_id_of("orders"), partitions=(wanted,)),)
    request = FetchRequest(replica_id=BrokerId(2), max_wait_ms=0, min_bytes=1, session_epoch=0, topics=topics)
    response = node.send(request, 14, connection=reader.connection).response
    assert response.session_id > 0
    session = session_of(node)
    assert (session.is_privileged, session.owner.replica_id) == (False, UNPROVEN)
