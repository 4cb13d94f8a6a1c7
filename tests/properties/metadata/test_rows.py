"""Partitions kept as rows are the partitions that objects would be."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.fetch_session.session import STATED_FIELDS
from tailrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tailrace.protocol.rows import ROWS_FROM, Rows, pick
from tailrace.protocol.schema import decode, encode_bytes, replace
from testkit.records.strategies import messages

VERSIONS = range(4, 19)
COUNT = ROWS_FROM + 20


def request(partitions: Sequence[FetchPartition]) -> FetchRequest:
    return FetchRequest(max_wait_ms=1, min_bytes=1, topics=(FetchTopic(partitions=partitions),))


def response(partitions: Sequence[PartitionData]) -> FetchResponse:
    return FetchResponse(responses=(FetchableTopicResponse(partitions=partitions),))


def alike(cls: type, version: int) -> st.SearchStrategy[tuple[Any, ...]]:
    """Many structs made of a few: Hypothesis would be slow to make each of them."""
    few = st.lists(messages(cls, version), min_size=1, max_size=4)
    return few.map(lambda found: tuple(found[index % len(found)] for index in range(COUNT)))


def plain_data(number: int, **changes: Any) -> PartitionData:
    values: dict[str, Any] = {"aborted_transactions": None, "records": b"", "high_watermark": 1 << 40} | changes
    return PartitionData(partition_index=number, last_stable_offset=number, log_start_offset=0, **values)


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_partitions_are_the_same_as_rows_and_as_objects(version: int) -> None:
    @settings(max_examples=6, deadline=None, database=None)
    @given(alike(FetchPartition, version))
    def check(partitions: tuple[FetchPartition, ...]) -> None:
        data = encode_bytes(request(partitions), version)
        read = decode(FetchRequest, version, data)
        found = read.topics[0].partitions
        has_tags = any(p.replica_directory_id != bytes(16) or p.high_watermark != (1 << 63) - 1 for p in partitions)
        assert isinstance(found, tuple if has_tags and version >= 12 else Rows)
        assert list(pick(found, STATED_FIELDS)) == list(map(attrgetter(*STATED_FIELDS), partitions))
        assert found == partitions
        assert encode_bytes(read, version) == data

    check()


@pytest.mark.parametrize("version", VERSIONS)
def test_partition_data_are_the_same_as_rows_and_as_objects(version: int) -> None:
    @settings(max_examples=6, deadline=None, database=None)
    @given(alike(PartitionData, version))
    def check(partitions: tuple[PartitionData, ...]) -> None:
        data = encode_bytes(response(partitions), version)
        read = decode(FetchResponse, version, data)
        assert read.responses[0].partitions == partitions
        assert encode_bytes(read, version) == data

    check()


@pytest.mark.parametrize("version", [4, 11, 12, 18])
@pytest.mark.parametrize("change", [{}, {"records": None}, {"aborted_transactions": ()}])
def test_empty_partitions_stay_rows(version: int, change: dict[str, Any]) -> None:
    partitions = tuple(plain_data(number, **change) for number in range(COUNT))
    data = encode_bytes(response(partitions), version)
    read = decode(FetchResponse, version, data)
    assert isinstance(read.responses[0].partitions, Rows)
    expected = (
        partitions if version >= 5 else tuple(replace(partition, log_start_offset=-1) for partition in partitions)
    )
    assert read.responses[0].partitions == expected
    assert encode_bytes(read, version) == data


@pytest.mark.parametrize("version", [11, 18])
@pytest.mark.parametrize("change", [{"records": b"batch"}, {"records": None}, {"aborted_transactions": ()}])
@pytest.mark.parametrize("place", [0, 1, COUNT - 1])
def test_one_partition_that_differs_in_size_makes_objects_of_all(
    version: int, change: dict[str, Any], place: int
) -> None:
    partitions = [plain_data(number) for number in range(COUNT)]
    partitions[place] = plain_data(place, **change)
    read = decode(FetchResponse, version, encode_bytes(response(tuple(partitions)), version))
    assert read.responses[0].partitions == tuple(partitions)
    assert isinstance(read.responses[0].partitions, tuple)


def test_rows_of_one_version_can_be_sent_in_another() -> None:
    partitions = tuple(FetchPartition(partition=n, fetch_offset=n * n, partition_max_bytes=1) for n in range(COUNT))
    read = decode(FetchRequest, 12, encode_bytes(request(partitions), 12))
    for version in VERSIONS:
        assert encode_bytes(read, version) == encode_bytes(request(partitions), version)


def test_rows_are_a_sequence() -> None:
    partitions = tuple(FetchPartition(partition=n, fetch_offset=n, partition_max_bytes=1) for n in range(COUNT))
    found = decode(FetchRequest, 12, encode_bytes(request(partitions), 12)).topics[0].partitions
    assert isinstance(found, Rows)
    assert (len(found), found[3], found[-1]) == (COUNT, partitions[3], partitions[-1])
    assert found[1:4] == partitions[1:4]
    assert hash(found) == hash(partitions)
    with pytest.raises(IndexError):
        found[COUNT]
    assert found != partitions[:-1]
