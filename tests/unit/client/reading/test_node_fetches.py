"""The fetches of one node: changes go into the request, and the answers belong to what the session has."""

from typing import Any

import pytest

from tailrace.client.reading.fetching import FetchOptions, PartitionFetch
from tailrace.client.reading.node_fetches import NodeFetches
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData

OPTIONS = FetchOptions(max_wait_ms=500, min_bytes=1, max_bytes=1_000, isolation_level=0, rack="")
IDS = {"a": TopicId(b"a" * 16), "b": TopicId(b"b" * 16)}
ANOTHER_ID = TopicId(b"c" * 16)
NO_ID = TopicId(bytes(16))
SESSION = 77


def _fetch(topic: str, partition: int, offset: int, *, topic_id: TopicId | None = None) -> PartitionFetch:
    return PartitionFetch(
        topic_partition=TopicPartition(topic, partition),
        topic_id=IDS[topic] if topic_id is None else topic_id,
        offset=offset,
        leader_epoch=0,
        max_bytes=100,
    )


def _offsets(request: FetchRequest) -> dict[tuple[str, int], int]:
    return {
        (topic.topic, partition.partition): partition.fetch_offset
        for topic in request.topics
        for partition in topic.partitions
    }


def _forgotten(request: FetchRequest) -> list[tuple[str, int]]:
    return [(topic.topic, number) for topic in request.forgotten_topics_data for number in topic.partitions]


def _response(
    *partitions: tuple[str, int], names: bool = False, session: int = SESSION, **fields: Any
) -> FetchResponse:
    return FetchResponse(
        session_id=session,
        responses=tuple(
            FetchableTopicResponse(
                topic=topic if names else "",
                topic_id=NO_ID if names else IDS[topic],
                partitions=(PartitionData(partition_index=number, high_watermark=9, aborted_transactions=None),),
            )
            for topic, number in partitions
        ),
        **fields,
    )


def _opened(*fetches: PartitionFetch, version: int = 17) -> NodeFetches:
    """A node whose session has these partitions."""
    node = NodeFetches()
    for fetch in fetches:
        node.want(fetch)
    node.request(OPTIONS, version)
    partitions = [tuple(fetch.topic_partition) for fetch in fetches]
    assert node.answered(_response(*partitions, names=version <= 12), OPTIONS) is not None  # type: ignore[arg-type]
    return node


def test_the_first_fetch_names_all_partitions_and_asks_for_a_session() -> None:
    node = NodeFetches()
    node.want(_fetch("a", 0, 5))
    node.want(_fetch("b", 1, 6))
    request = node.request(OPTIONS, 17)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert _offsets(request) == {("a", 0): 5, ("b", 1): 6}
    answers = node.answered(_response(("a", 0), ("b", 1)), OPTIONS)
    assert answers is not None
    assert [(each.topic_partition, each.offset) for each in answers] == [
        (TopicPartition("a", 0), 5),
        (TopicPartition("b", 1), 6),
    ]
    assert (node.session_id, node.full_fetches, node.incremental_fetches) == (SESSION, 1, 0)


def test_a_fetch_without_changes_names_nothing() -> None:
    node = _opened(_fetch("a", 0, 5), _fetch("a", 1, 5))
    request = node.request(OPTIONS, 17)
    assert (request.session_id, request.session_epoch) == (SESSION, 1)
    assert (request.topics, request.forgotten_topics_data) == ((), ())
    assert node.answered(_response(), OPTIONS) == []
    assert node.request(OPTIONS, 17).session_epoch == 2
    assert (node.full_fetches, node.incremental_fetches) == (1, 1)


def test_a_fetch_names_changed_offsets_and_forgets_what_is_dropped() -> None:
    node = _opened(_fetch("a", 0, 5), _fetch("a", 1, 5), _fetch("b", 0, 5))
    node.want(_fetch("a", 0, 8))
    node.drop(TopicPartition("b", 0))
    request = node.request(OPTIONS, 17)
    assert (_offsets(request), _forgotten(request)) == ({("a", 0): 8}, [("b", 0)])
    assert node.partition_count == 2


def test_a_partition_that_is_dropped_and_wanted_again_before_the_next_fetch_stays_in_the_session() -> None:
    node = _opened(_fetch("a", 0, 5))
    node.drop(TopicPartition("a", 0))
    node.want(_fetch("a", 0, 9))
    request = node.request(OPTIONS, 17)
    assert (_offsets(request), _forgotten(request)) == ({("a", 0): 9}, [])


def test_an_incremental_answer_belongs_to_the_offset_that_was_sent_and_not_to_a_later_one() -> None:
    node = _opened(_fetch("a", 0, 5))
    node.request(OPTIONS, 17)
    node.want(_fetch("a", 0, 100))  # the consumer seeks meanwhile
    answers = node.answered(_response(("a", 0)), OPTIONS)
    assert answers is not None
    assert [each.offset for each in answers] == [5]
    assert _offsets(node.request(OPTIONS, 17)) == {("a", 0): 100}


@pytest.mark.parametrize(
    ("code", "session"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, SESSION),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, SESSION),
    ],
)
def test_a_fault_of_the_session_has_the_next_fetch_name_all_partitions(code: ErrorCode, session: int) -> None:
    node = _opened(_fetch("a", 0, 5), _fetch("a", 1, 6))
    node.request(OPTIONS, 17)
    assert node.answered(_response(session=0, error_code=code), OPTIONS) is None
    request = node.request(OPTIONS, 17)
    assert (request.session_id, request.session_epoch) == (session, 0)
    assert _offsets(request) == {("a", 0): 5, ("a", 1): 6}


def test_another_fault_of_the_whole_fetch_is_raised_and_the_next_fetch_is_full() -> None:
    node = _opened(_fetch("a", 0, 5))
    node.request(OPTIONS, 17)
    with pytest.raises(KafkaError) as caught:
        node.answered(_response(error_code=ErrorCode.UNKNOWN_SERVER_ERROR), OPTIONS)
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert node.request(OPTIONS, 17).session_epoch == 0


def test_a_broker_that_keeps_no_session_gets_full_fetches() -> None:
    node = NodeFetches()
    node.want(_fetch("a", 0, 5))
    for count in (1, 2):
        request = node.request(OPTIONS, 17)
        assert (request.session_id, request.session_epoch, _offsets(request)) == (0, 0, {("a", 0): 5})
        assert node.answered(_response(("a", 0), session=0), OPTIONS) is not None
        assert node.full_fetches == count


@pytest.mark.parametrize("version", [4, 6])
def test_a_broker_without_sessions_gets_fetches_without_one(version: int) -> None:
    node = NodeFetches()
    node.want(_fetch("a", 0, 5))
    for offset in (5, 6):
        node.want(_fetch("a", 0, offset))
        request = node.request(OPTIONS, version)
        assert (request.session_id, request.session_epoch, _offsets(request)) == (0, -1, {("a", 0): offset})
        assert node.answered(_response(("a", 0), names=True, session=0), OPTIONS) is not None
    assert node.close() is None


def test_a_session_with_names_matches_answers_by_name() -> None:
    node = _opened(_fetch("a", 0, 5), version=12)
    node.request(OPTIONS, 12)
    answers = node.answered(_response(("a", 0), names=True), OPTIONS)
    assert answers is not None
    assert answers[0].topic_partition == TopicPartition("a", 0)


def test_a_topic_without_an_id_has_all_topics_named_by_name_in_a_new_session() -> None:
    node = _opened(_fetch("a", 0, 5))
    assert node.max_version == 17
    node.want(_fetch("b", 0, 5, topic_id=NO_ID))
    assert node.max_version == 12
    request = node.request(OPTIONS, 12)
    assert (request.session_id, request.session_epoch) == (SESSION, 0)
    assert _offsets(request) == {("a", 0): 5, ("b", 0): 5}
    node.drop(TopicPartition("b", 0))
    assert node.max_version == 17


def test_a_topic_that_was_created_again_leaves_the_session_and_enters_it_with_its_new_id() -> None:
    node = _opened(_fetch("a", 0, 5))
    node.want(_fetch("a", 0, 0, topic_id=ANOTHER_ID))
    request = node.request(OPTIONS, 17)
    assert [topic.topic_id for topic in request.topics] == [ANOTHER_ID]
    assert [topic.topic_id for topic in request.forgotten_topics_data] == [IDS["a"]]
    assert node.partition_count == 1


def test_a_topic_that_was_created_again_begins_a_new_session_where_topics_have_names() -> None:
    """Under its name the partition would enter the session and leave it with one request."""
    node = _opened(_fetch("a", 0, 5), version=12)
    node.want(_fetch("a", 0, 0, topic_id=ANOTHER_ID))
    request = node.request(OPTIONS, 12)
    assert (request.session_id, request.session_epoch) == (SESSION, 0)
    assert (_offsets(request), _forgotten(request)) == ({("a", 0): 0}, [])


def test_an_answer_with_a_partition_that_was_not_asked_for_does_not_count() -> None:
    node = _opened(_fetch("a", 0, 5))
    node.request(OPTIONS, 17)
    assert node.answered(_response(("b", 0)), OPTIONS) is None
    assert node.request(OPTIONS, 17).session_epoch == 0


def test_a_fetch_without_an_answer_has_the_session_closed_by_the_next() -> None:
    node = _opened(_fetch("a", 0, 5))
    node.request(OPTIONS, 17)
    node.failed()
    request = node.request(OPTIONS, 17)
    assert (request.session_id, request.session_epoch) == (SESSION, 0)


def test_a_close_names_the_session_and_no_partition() -> None:
    node = _opened(_fetch("a", 0, 5))
    request = node.close()
    assert request is not None
    assert (request.session_id, request.session_epoch, request.topics) == (SESSION, -1, ())
    assert node.close() is None
