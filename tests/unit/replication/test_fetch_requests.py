from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId, TopicId
from tailrace.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from tailrace.replication.fetch_requests import FullFetches, ReplicaFetchConfig
from tailrace.replication.replica_fetcher import PartitionKey, Position, Wanted

X, Y = TopicId(b"x" * 16), TopicId(b"y" * 16)


def wanted(topic_id: TopicId, partition: int, offset: int = 0) -> Wanted:
    return Wanted(PartitionKey(topic_id, partition), 4, Position(offset, 3, 1, 2))


def named(request: FetchRequest) -> list[tuple[TopicId, list[tuple[int, int]]]]:
    return [
        (TopicId(bytes(topic.topic_id)), [(one.partition, one.fetch_offset) for one in topic.partitions])
        for topic in request.topics
    ]


def full_fetches() -> FullFetches:
    return FullFetches(broker_id=BrokerId(7), config=ReplicaFetchConfig())


def test_a_request_names_all_that_is_wanted_however_little_has_changed() -> None:
    fetches = full_fetches()
    first = fetches.request([wanted(X, 0), wanted(X, 1), wanted(Y, 0)], [], broker_epoch=9)
    assert named(first) == [(X, [(0, 0), (1, 0)]), (Y, [(0, 0)])]
    (partition, _) = first.topics[0].partitions
    assert (partition.current_leader_epoch, partition.last_fetched_epoch) == (4, 3)
    assert (partition.log_start_offset, partition.high_watermark) == (1, 2)
    assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (7, 9)
    assert (first.session_id, first.session_epoch) == (0, -1)
    assert named(fetches.request([], [], broker_epoch=9)) == named(first)


def test_a_change_goes_to_the_end_and_so_may_its_topic() -> None:
    fetches = full_fetches()
    fetches.request([wanted(X, 0), wanted(Y, 0), wanted(Y, 1)], [], broker_epoch=9)
    assert named(fetches.request([wanted(X, 0, 5)], [], broker_epoch=9)) == [(Y, [(0, 0), (1, 0)]), (X, [(0, 5)])]
    forgotten = [PartitionKey(Y, 0)]
    assert named(fetches.request([wanted(X, 1)], forgotten, broker_epoch=9)) == [(Y, [(1, 0)]), (X, [(0, 5), (1, 0)])]


def test_no_answer_and_a_refused_fetch_say_nothing_of_any_partition() -> None:
    fetches = full_fetches()
    assert fetches.answers(None) is None
    data = PartitionData(partition_index=3, high_watermark=8, aborted_transactions=None, records=None, error_code=999)
    topics = (FetchableTopicResponse(topic_id=X, partitions=(data,)),)
    assert fetches.answers(FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, responses=topics)) is None
    (answer,) = fetches.answers(FetchResponse(responses=topics)) or ()
    assert (answer.key, answer.error) == (PartitionKey(X, 3), ErrorCode.UNKNOWN_SERVER_ERROR)
    assert (answer.high_watermark, answer.records, answer.diverging) == (8, b"", None)
