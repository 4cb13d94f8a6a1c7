"""Partitions of a fetch session that are missing, named twice, refused or gone."""

import pytest

from tailrace.fetch_session.session import DOES_NOT_EXIST
from tailrace.metadata.image import EMPTY_IMAGE, ChangedPartition, ImageDelta, TopicImage
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.server.fetch.sessions import TOLD_AGAIN_MS
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, topic_id_of
from testkit.nodes.session_reader import SessionReader, answers, numbers
from unit.server.fetch.session_readers import ALL, session_of


@pytest.fixture
def node() -> DataPath:
    node = DataPath("/logs", files=SimulatedDisk())
    for number in range(4):
        node.create(partition=number)
    return node


@pytest.fixture(params=[7, 11, 12, 13, 17, 18])
def reader(node: DataPath, request: pytest.FixtureRequest) -> SessionReader:
    return SessionReader(node, version=request.param)


def test_a_new_role_is_an_error_in_a_session_at_once_and_the_partition_is_news_afterwards(node: DataPath) -> None:
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


def test_a_missing_partition_of_a_session_is_an_error_once_and_clean_until_metadata_brings_it(node: DataPath) -> None:
    reader = SessionReader(node, version=12)
    found = reader.open({0: 0, 9: 0})
    assert [data.error_code for data in found] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    session = session_of(node)
    assert reader.next() == reader.next() == []
    assert not session.due
    metadata_brings(node, 8)
    assert not session.due, "of a partition that is not in the session"
    metadata_brings(node, 9)
    (data,) = reader.next()
    assert (data.partition_index, data.error_code) == (9, 0)
    assert reader.next() == []


def test_a_new_topic_reaches_sessions_by_name_and_by_id(reader: SessionReader, node: DataPath) -> None:
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


def test_a_missing_partition_ends_no_wait_of_a_session_while_others_are_read(node: DataPath) -> None:
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


def test_a_session_reports_a_missing_partition_again_when_it_is_named_again_and_after_5_s(node: DataPath) -> None:
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


def test_a_partition_that_a_session_names_twice_counts_once(node: DataPath) -> None:
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


def test_a_topic_that_a_session_names_twice_keeps_the_order_of_its_partitions(node: DataPath) -> None:
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


def test_settings_reach_a_session_of_an_old_reader_of_a_clean_partition(node: DataPath) -> None:
    reader = SessionReader(node, version=9)
    reader.open(ALL)
    assert reader.next() == []
    node.table.get("orders", 0).update_config(TopicConfig(compression_type="zstd"))
    (data,) = reader.next()
    assert (data.partition_index, data.error_code) == (0, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


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
