"""Fetch sessions as a node carries them out. The text's rules, a row each: tests/scenarios/fetch/test_kip_227."""

import pytest

from tailrace.fetch_session.session import DOES_NOT_EXIST, UNPROVEN
from tailrace.metadata.image import EMPTY_IMAGE, ChangedPartition, ImageDelta, TopicImage
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from tailrace.replication.outcomes import READ_COMMITTED, PartitionRead
from tailrace.replication.partition import Partition
from tailrace.server.fetch.sessions import TOLD_AGAIN_MS
from tailrace.storage import ReadLimits
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, topic_id_of
from testkit.nodes.ports import DeferredDisk
from testkit.nodes.session_reader import SessionReader, answers, numbers


@pytest.fixture
def node() -> DataPath:
    node = DataPath("/logs", files=SimulatedDisk())
    for number in range(4):
        node.create(partition=number)
    return node


@pytest.fixture(params=[7, 11, 12, 13, 17, 18])
def reader(node: DataPath, request: pytest.FixtureRequest) -> SessionReader:
    return SessionReader(node, version=request.param)


ALL = {0: 0, 1: 0, 2: 0, 3: 0}


def test_an_idle_session_names_nothing_on_either_side(reader: SessionReader) -> None:
    assert numbers(reader.open(ALL)) == [0, 1, 2, 3]
    for _ in range(3):
        assert reader.next() == []


def test_an_answer_names_the_partition_with_records_alone(reader: SessionReader, node: DataPath) -> None:
    reader.open(ALL)
    reader.next()
    node.produce("orders", b"a", partition=2)
    (data,) = reader.next()
    assert (data.partition_index, data.high_watermark) == (2, 1)
    assert data.records
    (again,) = reader.next()  # the reader has not said that it has read them
    assert again.records == data.records
    assert reader.next({2: 1}) == []


def test_a_clean_partition_is_not_read(reader: SessionReader, node: DataPath, monkeypatch: pytest.MonkeyPatch) -> None:
    reader.open(ALL)
    reader.next()
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
    reader = SessionReader(node)
    reader.open(ALL)
    reader.next()
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
def test_an_answer_that_is_made_in_slices_is_whole(
    reader: SessionReader, node: DataPath, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr("tailrace.server.fetch.reading._SLICE", partitions)
    reader.open(ALL)
    reader.next()
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
    reader = SessionReader(node)
    reader.open(ALL)
    reader.next()
    node.produce("orders", b"a", partition=0)
    node.produce("orders", b"a", partition=2)
    return reader


def test_a_slice_whose_answer_is_not_sure_commits_nothing(node: DataPath, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_change_without_records_comes_with_the_next_answer_and_wakes_no_consumer(node: DataPath) -> None:
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
def test_a_log_start_that_moves_with_the_high_watermark_ends_the_wait(node: DataPath, has_session: bool) -> None:
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


def test_a_new_role_is_an_error_at_once_and_the_partition_is_news_afterwards(node: DataPath) -> None:
    reader = SessionReader(node, version=10)  # later versions may read from followers
    reader.open(ALL)
    waiting = reader.send(max_wait_ms=500)
    reader.epoch += 1
    node.table.get("orders", 1).step_down()
    node.end_turn()
    (data,) = answers(waiting.response)
    assert (data.partition_index, data.error_code) == (1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    (data,) = reader.next()
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    node.create(partition=1, leader_epoch=1)
    (data,) = reader.next()
    assert (data.partition_index, data.error_code, data.high_watermark) == (1, 0, 0)
    assert reader.next() == []


def metadata_brings(node: DataPath, partition: int) -> None:
    """Create the partition, and then name it in the image."""
    created = node.create(partition=partition)
    assert created.state is not None
    changed = ChangedPartition(TopicPartition("orders", partition), created.state)
    node.broker.fetch_sessions.on_image(EMPTY_IMAGE, ImageDelta(changed_partitions=(changed,)))
    node.end_turn()


def test_a_missing_partition_is_an_error_once_and_clean_until_metadata_brings_it(node: DataPath) -> None:
    reader = SessionReader(node, version=12)
    found = reader.open({0: 0, 9: 0})
    assert [data.error_code for data in found] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    (session,) = node.broker.fetch_sessions.cache.sessions()
    assert reader.next() == reader.next() == []
    assert not session.due
    metadata_brings(node, 8)
    assert not session.due, "of a partition that is not in the session"
    metadata_brings(node, 9)
    (data,) = reader.next()
    assert (data.partition_index, data.error_code) == (9, 0)
    assert reader.next() == []


def test_a_new_topic_reaches_readers_by_name_and_by_id(reader: SessionReader, node: DataPath) -> None:
    reader.topic = "payments"
    topic_id = topic_id_of("payments")
    known = SessionReader(node, version=reader.version)
    known.open(ALL)
    (data,) = reader.open({0: 0})
    assert data.error_code in DOES_NOT_EXIST
    assert reader.next() == []
    state = node.create("payments").state
    assert state is not None
    image = TopicImage(name="payments", topic_id=topic_id, partitions={0: state})
    node.broker.fetch_sessions.on_image(EMPTY_IMAGE, ImageDelta(created_topics=(image,)))
    (data,) = reader.next()
    assert (data.partition_index, data.error_code) == (0, 0)
    assert known.next() == []


def test_a_missing_partition_ends_no_wait_while_others_are_read(node: DataPath) -> None:
    reader = SessionReader(node, version=12)
    full = reader.send({0: 0, 9: 0}, max_wait_ms=500)
    assert not full.is_answered
    node.clock.advance(500)
    reader.session_id, reader.epoch = full.response.session_id, 1
    assert [data.error_code for data in answers(full.response)] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    waiting = reader.send({8: 0}, max_wait_ms=500)
    assert not waiting.is_answered
    node.clock.advance(499)
    assert not waiting.is_answered
    node.produce("orders", b"a", partition=0)
    assert numbers(answers(waiting.response)) == [0, 8], "it comes with what ends the wait"


def test_missing_partitions_alone_are_answered_at_once_and_then_wait(node: DataPath) -> None:
    reader = SessionReader(node, version=12)
    assert numbers(reader.open({8: 0, 9: 0}, max_wait_ms=500)) == [8, 9]
    waiting = reader.send(max_wait_ms=500)
    assert not waiting.is_answered
    metadata_brings(node, 9)
    node.produce("orders", b"a", partition=9)
    assert numbers(answers(waiting.response)) == [9]


def test_a_missing_partition_is_reported_again_when_it_is_named_again_and_after_5_s(node: DataPath) -> None:
    reader = SessionReader(node, version=12)
    reader.open({0: 0, 9: 0})
    assert reader.next() == []
    assert numbers(reader.next({9: 0})) == [9]
    assert reader.next() == []
    node.clock.advance(TOLD_AGAIN_MS)
    assert numbers(reader.next()) == [9]
    assert reader.next() == []


def test_missing_partitions_take_no_places_and_a_topic_that_goes_gives_its_places_back(
    node: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.fetch_session.session_places.MAX_CONSUMER_PARTITIONS", 4)
    reader = SessionReader(node)
    other = SessionReader(node, connection=reader.connection)
    reader.open({**ALL, **dict.fromkeys(range(4, 50), 0)})
    assert other.send({0: 0}).response.session_id == 0
    node.table.delete("orders", 3)
    node.end_turn()
    assert numbers(reader.next()) == [3]
    other.open({0: 0})


def test_a_partition_that_is_named_twice_counts_once(node: DataPath) -> None:
    """Rule 3 of KIP-227 compares partitions, not names; a full fetch answers what is said last, at the first place."""
    wanted = [
        FetchPartition(partition=n, fetch_offset=o, partition_max_bytes=1 << 20) for n, o in ((1, 0), (2, 0), (1, 1))
    ]
    node.produce("orders", b"a", partition=1)
    for partitions in ((tuple(wanted),), tuple((entry,) for entry in wanted)):
        topics = tuple(FetchTopic(topic="orders", partitions=named) for named in partitions)
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, session_epoch=0, topics=topics)
        found = answers(node.send(request, 12).response)
        assert numbers(found) == [1, 2]
        assert not found[0].records, "offset 1 is the end"
    assert {session.partition_count for session in node.broker.fetch_sessions.cache.sessions()} == {2}


def test_a_topic_that_is_named_twice_keeps_the_order_of_its_partitions(node: DataPath) -> None:
    node.create("payments")
    named = (("orders", 2), ("payments", 0), ("orders", 1))
    topics = tuple(
        FetchTopic(topic=name, partitions=(FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1),))
        for name, n in named
    )
    response = node.send(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1, topics=topics), 12).response
    assert (
        tuple((topic.topic, data.partition_index) for topic in response.responses for data in topic.partitions) == named
    )


def test_settings_reach_an_old_reader_of_a_clean_partition(node: DataPath) -> None:
    reader = SessionReader(node, version=9)
    reader.open(ALL)
    assert reader.next() == []
    node.table.get("orders", 0).update_config(TopicConfig(compression_type="zstd"))
    (data,) = reader.next()
    assert (data.partition_index, data.error_code) == (0, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def test_another_isolation_level_is_a_look_at_everything(node: DataPath) -> None:
    reader = SessionReader(node)
    reader.open(ALL)
    reader.next()
    session = next(iter(node.broker.fetch_sessions.cache.sessions()))
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
    reader = SessionReader(node)
    reader.open(ALL)
    reader.next()
    replica = node.table.get("orders", 0).replica
    assert replica.watchers is not None
    assert replica.watchers.wanted
    reader.epoch = -1
    assert reader.send().response.session_id == 0
    assert not replica.watchers.wanted
    assert len(node.broker.fetch_sessions.cache) == 0


def test_a_session_that_becomes_empty_is_closed_without_an_error(reader: SessionReader, node: DataPath) -> None:
    reader.open({0: 0, 1: 0})
    response = reader.send(forgotten=[0, 1]).response
    assert (response.error_code, response.session_id, response.responses) == (0, 0, ())
    assert len(node.broker.fetch_sessions.cache) == 0


def test_a_session_that_grows_beyond_the_limit_is_closed_and_its_data_count(
    node: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.fetch_session.session_cache.MAX_PARTITIONS", 2)
    reader = SessionReader(node)
    reader.open({0: 0, 1: 0})
    node.produce("orders", b"a", partition=2)
    response = reader.send({2: 0}, max_wait_ms=500).response
    assert (response.error_code, response.session_id) == (0, 0)
    assert 2 in numbers(answers(response))
    assert len(node.broker.fetch_sessions.cache) == node.broker.fetch_sessions.cache.partition_count == 0
    assert not any(
        watchers.wanted
        for number in range(4)
        if (watchers := node.table.get("orders", number).replica.watchers) is not None
    )


def test_a_topic_name_that_no_topic_can_have_gets_no_session_and_ends_one(node: DataPath) -> None:
    long = SessionReader(node, version=12, topic="n" * 250)
    assert long.send({0: 0}).response.session_id == 0
    reader = SessionReader(node, version=12)
    reader.open({0: 0})
    reader.topic = long.topic
    response = reader.send({0: 0}).response
    assert (response.error_code, response.session_id) == (0, 0)
    assert [data.error_code for data in answers(response)] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert len(node.broker.fetch_sessions.cache) == 0


def test_records_that_become_committed_later_are_given_then() -> None:
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
    session = next(iter(node.broker.fetch_sessions.cache.sessions()))
    assert session.listener is None


def test_the_saving_is_counted_for_all_that_is_not_named(node: DataPath) -> None:
    reader = SessionReader(node)
    reader.open(ALL)
    reader.next()
    session = next(iter(node.broker.fetch_sessions.cache.sessions()))
    assert (session.incremental_fetches, session.saved_bytes) == (1, 4 * (33 + 37))
    reader.next({0: 0})
    assert (session.incremental_fetches, session.saved_bytes) == (2, 4 * (33 + 37) + 3 * 33 + 4 * 37)


def test_a_follower_that_is_imitated_gets_no_priority(node: DataPath) -> None:
    reader = SessionReader(node, version=14)
    request = FetchRequest(
        replica_id=BrokerId(2),
        max_wait_ms=0,
        min_bytes=1,
        session_id=0,
        session_epoch=0,
        topics=(
            FetchTopic(
                topic_id=topic_id_of("orders"),
                partitions=(FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1),),
            ),
        ),
    )
    response = node.send(request, 14, connection=reader.connection).response
    assert response.session_id > 0
    session = next(iter(node.broker.fetch_sessions.cache.sessions()))
    assert (session.is_privileged, session.owner.replica_id) == (False, UNPROVEN)
