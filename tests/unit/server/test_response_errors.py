"""Errors in responses to clients are counted, wherever in a response they stand."""

from tailrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tailrace.protocol.messages.membership import HeartbeatResponse
from tailrace.protocol.messages.metadata import MetadataResponse
from tailrace.protocol.registry import APIS
from tailrace.protocol.schema import schema_of
from tailrace.server.response_errors import ResponseErrors, has_error_codes


def data(index: int, code: int) -> PartitionData:
    return PartitionData(partition_index=index, error_code=code, high_watermark=-1, aborted_transactions=None)


def test_errors_count_at_the_top_and_per_partition() -> None:
    errors = ResponseErrors()
    errors.count(12, HeartbeatResponse(error_code=27))
    errors.count(12, HeartbeatResponse(error_code=27))
    errors.count(
        1,
        FetchResponse(
            error_code=70,
            responses=(
                FetchableTopicResponse(topic="a", partitions=(data(0, 0), data(1, 1), data(2, 1))),
                FetchableTopicResponse(topic="b", partitions=(data(0, 6),)),
            ),
        ),
    )
    assert errors.counts == {(12, 27): 2, (1, 70): 1, (1, 1): 2, (1, 6): 1}


def test_no_error_is_not_an_error() -> None:
    errors = ResponseErrors()
    errors.count(12, HeartbeatResponse())
    errors.count(1, FetchResponse(responses=(FetchableTopicResponse(topic="a", partitions=(data(0, 0),)),)))
    assert not errors.counts


def test_an_array_that_is_null_holds_no_error() -> None:
    errors = ResponseErrors()
    errors.count(3, MetadataResponse(brokers=(), controller_id=1, topics=()))
    assert not errors.counts


def test_every_response_can_be_looked_into() -> None:
    """An error response of each API, as the dispatcher makes them, is counted: no place was forgotten."""
    without = {api.name for api in APIS.values() if not has_error_codes(schema_of(api.response))}
    assert without == set()
