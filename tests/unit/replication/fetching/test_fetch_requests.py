from collections.abc import Iterable

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId, TopicId
from tailrace.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from tailrace.replication.fetch_requests import ReplicaFetchConfig, SessionFetches
from tailrace.replication.fetcher_events import PartitionKey, Position, Wanted

X, Y = TopicId(b"x" * 16), TopicId(b"y" * 16)
ID = 77


def wanted(topic_id: TopicId, partition: int, offset: int = 0, *, high_watermark: int = 2) -> Wanted:
    return Wanted(PartitionKey(topic_id, partition), 4, Position(offset, 3, 1, high_watermark))


def named(request: FetchRequest) -> list[tuple[TopicId, list[tuple[int, int]]]]:
    return [
        (
            TopicId(bytes(topic.topic_id)),
            [(partition.partition, partition.fetch_offset) for partition in topic.partitions],
        )
        for topic in request.topics
    ]


def forgotten(request: FetchRequest) -> list[tuple[TopicId, tuple[int, ...]]]:
    return [(TopicId(bytes(topic.topic_id)), tuple(topic.partitions)) for topic in request.forgotten_topics_data]


def data(partition: int, *, error_code: int = 0) -> PartitionData:
    return PartitionData(
        partition_index=partition, high_watermark=8, aborted_transactions=None, records=None, error_code=error_code
    )


def response(
    *keys: tuple[TopicId, int], session_id: int = ID, error: int = 0, partition_error: int = 0, throttled_ms: int = 0
) -> FetchResponse:
    topics: dict[TopicId, list[PartitionData]] = {}
    for topic_id, partition in keys:
        topics.setdefault(topic_id, []).append(data(partition, error_code=partition_error))
    return FetchResponse(
        throttle_time_ms=throttled_ms,
        error_code=error,
        session_id=session_id,
        responses=tuple(
            FetchableTopicResponse(topic_id=fetched_id, partitions=given) for fetched_id, given in topics.items()
        ),
    )


class SessionFetchesBench:
    """The fetches of broker 7, whose registration has epoch 9."""

    def __init__(self, *first: Wanted, max_partitions: int = 1_000, session_id: int = ID) -> None:
        self.fetches = SessionFetches(broker_id=BrokerId(7), config=ReplicaFetchConfig(), max_partitions=max_partitions)
        self.first = self.request(first)
        keys = [(topic_id, partition) for topic_id, given in named(self.first) for partition, _ in given]
        assert self.fetches.answers(response(*keys, session_id=session_id)) is not None

    def request(
        self, changed: Iterable[Wanted] = (), gone: Iterable[PartitionKey] = (), *, has_more: bool = False
    ) -> FetchRequest:
        return self.fetches.request(list(changed), list(gone), has_more=has_more, broker_epoch=9)


def place(request: FetchRequest) -> tuple[int, int]:
    return request.session_id, request.session_epoch


def test_the_first_request_names_all_that_is_wanted_and_asks_for_a_session() -> None:
    first = SessionFetchesBench(wanted(X, 0), wanted(X, 1), wanted(Y, 0)).first
    assert named(first) == [(X, [(0, 0), (1, 0)]), (Y, [(0, 0)])]
    (partition, _) = first.topics[0].partitions
    assert (partition.current_leader_epoch, partition.last_fetched_epoch) == (4, 3)
    assert (partition.log_start_offset, partition.high_watermark) == (1, 2)
    assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (7, 9)
    assert (place(first), first.max_wait_ms, first.min_bytes) == ((0, 0), 500, 1)


def test_a_request_of_a_session_names_the_changes() -> None:
    bench = SessionFetchesBench(wanted(X, 0), wanted(Y, 0), wanted(Y, 1))
    request = bench.request([wanted(Y, 1, 5), wanted(X, 1)], [PartitionKey(X, 0), PartitionKey(Y, 0)])
    assert named(request) == [(Y, [(1, 5)]), (X, [(1, 0)])]
    assert forgotten(request) == [(X, (0,)), (Y, (0,))]
    assert (place(request), request.max_wait_ms) == ((ID, 1), 500)
    assert bench.fetches.answers(response((Y, 1))) is not None
    assert named(bench.request()) == []


def test_a_high_watermark_of_the_followers_own_goes_out_only_with_another_change() -> None:
    bench = SessionFetchesBench(wanted(X, 0))
    assert named(bench.request([wanted(X, 0, high_watermark=5)])) == []
    assert bench.fetches.answers(response()) == ()
    request = bench.request([wanted(X, 0, 1, high_watermark=6)])
    assert request.topics[0].partitions[0].high_watermark == 6


def test_a_full_request_puts_the_latest_change_last() -> None:
    bench = SessionFetchesBench(wanted(X, 0), wanted(Y, 0), wanted(Y, 1))
    bench.request([wanted(X, 0, 5)])
    assert bench.fetches.answers(None) is None
    request = bench.request()
    assert (place(request), named(request)) == ((ID, 0), [(Y, [(0, 0), (1, 0)]), (X, [(0, 5)])])


def test_a_large_session_is_opened_by_requests_that_do_not_wait() -> None:
    bench = SessionFetchesBench(*(wanted(X, number) for number in range(5)), max_partitions=2)
    requests = [bench.first]
    for _ in range(3):
        requests.append(bench.request())
        assert bench.fetches.answers(response()) == ()
    assert [[number for _, given in named(request) for number, _ in given] for request in requests] == [
        [0, 1],
        [2, 3],
        [4],
        [],
    ]
    assert [request.max_wait_ms for request in requests] == [0, 0, 500, 500]


def test_a_request_that_others_go_on_does_not_wait() -> None:
    bench = SessionFetchesBench(wanted(X, 0))
    assert bench.request([wanted(X, 1)], has_more=True).max_wait_ms == 0


def test_a_leader_without_sessions_gets_full_requests() -> None:
    bench = SessionFetchesBench(wanted(X, 0), wanted(X, 1), max_partitions=1, session_id=0)
    for _ in range(2):
        request = bench.request()
        assert (place(request), named(request), request.max_wait_ms) == ((0, 0), [(X, [(0, 0), (1, 0)])], 500)
        assert bench.fetches.answers(response((X, 0), (X, 1), session_id=0)) is not None


def test_no_answer_and_a_refused_full_request_say_nothing_of_any_partition() -> None:
    bench = SessionFetchesBench(wanted(X, 3))
    bench.request()
    assert bench.fetches.answers(None) is None
    bench.request()
    assert bench.fetches.answers(response((X, 3), error=ErrorCode.UNKNOWN_SERVER_ERROR)) is None
    bench.request()
    (answer,) = bench.fetches.answers(response((X, 3), partition_error=999)) or ()
    assert (answer.key, answer.error) == (PartitionKey(X, 3), ErrorCode.UNKNOWN_SERVER_ERROR)
    assert (answer.high_watermark, answer.records, answer.diverging) == (8, b"", None)


def test_a_lost_session_is_no_reason_to_wait_and_its_answer_has_no_data() -> None:
    bench = SessionFetchesBench(wanted(X, 0), wanted(X, 1))
    bench.request()
    assert bench.fetches.answers(response((X, 0), error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0)) == ()
    assert place(bench.request()) == (0, 0)


def test_an_answer_that_does_not_fit_its_request_has_no_data() -> None:
    bench = SessionFetchesBench(wanted(X, 0), wanted(X, 1))
    bench.request()
    assert bench.fetches.answers(response((Y, 0), (X, 0))) == ()
    assert place(bench.request()) == (ID, 0)
    assert bench.fetches.answers(response((X, 0))) is None
    assert place(bench.request()) == (0, 0)
    assert bench.fetches.answers(response(session_id=0, throttled_ms=5)) is None


def test_the_last_request_closes_the_session_and_does_not_wait() -> None:
    bench = SessionFetchesBench(wanted(X, 0))
    request = bench.fetches.close(broker_epoch=9)
    assert request is not None
    assert (place(request), request.max_wait_ms, request.topics) == ((ID, -1), 0, ())
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (7, 9)
    assert bench.fetches.close(broker_epoch=9) is None
