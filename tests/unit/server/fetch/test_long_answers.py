"""An answer that is encoded in steps has the same bytes as an answer that is encoded at once."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.headers import encode_response
from tailrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from tailrace.server.context import RequestContext, RequestServices
from tailrace.server.fetch.long_answers import STEP, respond_in_steps
from tailrace.server.response_errors import ResponseErrors
from testkit.nodes.ports import RecordingConnection

FETCH = 1


def topic(number: int, partitions: int, version: int) -> FetchableTopicResponse:
    found = []
    for index in range(partitions):
        leader = LeaderIdAndEpoch(leader_id=2, leader_epoch=3) if version >= 12 and index == 3 else LeaderIdAndEpoch()
        found.append(
            PartitionData(
                partition_index=index,
                error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER if index == 3 else 0,
                high_watermark=index,
                records=b"r" * (3_000 if index == 5 else 10),
                current_leader=leader,
                aborted_transactions=None,
            )
        )
    by_id = version >= 13
    return FetchableTopicResponse(
        topic="" if by_id else f"topic {number}",
        topic_id=bytes([number + 1]) * 16 if by_id else bytes(16),
        partitions=tuple(found),
    )


@pytest.mark.parametrize("version", range(4, 19))
@pytest.mark.parametrize(("topics", "partitions"), [(0, 0), (1, 1), (2, 2 * STEP + 7), (150, 2)])
def test_a_long_answer_has_the_same_bytes_and_counts(version: int, topics: int, partitions: int) -> None:
    response = FetchResponse(
        error_code=0,
        session_id=5 if version >= 7 else 0,
        responses=tuple(topic(number, partitions, version) for number in range(topics)),
        node_endpoints=(NodeEndpoint(node_id=2, host="h", port=3),) if version >= 16 else (),
    )
    connection, errors, expected = RecordingConnection(), ResponseErrors(), ResponseErrors()
    context = RequestContext(connection, connection.next_slot(), FETCH, version, 9, "reader", RequestServices(errors))
    steps = sum(1 for _ in respond_in_steps(context, response))
    assert steps == topics * -(-partitions // STEP)
    assert connection.answers[0] == b"".join(encode_response(response, version, 9))
    expected.count(FETCH, response)
    assert errors.counts == expected.counts
