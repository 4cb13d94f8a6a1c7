"""KIP-74: a size limit for the whole fetch response, beside the limits of its partitions. Told as a table.

Each partition is a list of batch sizes in bytes; sizes below are of batches with one record, made to measure.
"""

from dataclasses import dataclass

import pytest

from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.protocol.records.batch import iter_batches
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, batch_of


@dataclass(frozen=True, kw_only=True)
class LimitScenario:
    name: str
    batches: tuple[tuple[int, ...], ...]
    """Per partition, in the order of the request."""
    max_bytes: int
    partition_max_bytes: int
    then: tuple[tuple[int, ...], ...]
    """The sizes of the batches that each partition gives."""


SCENARIOS = (
    LimitScenario(
        name="everything fits",
        batches=((100, 100), (100,)),
        max_bytes=1000,
        partition_max_bytes=1000,
        then=((100, 100), (100,)),
    ),
    LimitScenario(
        name="'at least one message is returned irrespective of max_bytes'",
        batches=((900, 100), (100,)),
        max_bytes=300,
        partition_max_bytes=200,
        then=((900,), ()),
    ),
    LimitScenario(
        name="the same in the first partition that is not empty",
        batches=((), (900,), (900,)),
        max_bytes=300,
        partition_max_bytes=200,
        then=((), (900,), ()),
    ),
    LimitScenario(
        name="'processes partitions in order they appear in request' until the response is full",
        batches=((100, 100, 100), (100, 100), (100,)),
        max_bytes=400,
        partition_max_bytes=1000,
        then=((100, 100, 100), (100,), ()),
    ),
    LimitScenario(
        name="a partition's own limit holds while the response has room",
        batches=((100, 100, 100), (100, 100)),
        max_bytes=1000,
        partition_max_bytes=250,
        then=((100, 100), (100, 100)),
    ),
    LimitScenario(
        name="only one partition may exceed the limits",
        batches=((100,), (900,), (100,)),
        max_bytes=1000,
        partition_max_bytes=200,
        then=((100,), (), (100,)),
    ),
    LimitScenario(
        name="a limit of 0 gives one batch",
        batches=((100, 100), (100,)),
        max_bytes=0,
        partition_max_bytes=0,
        then=((100,), ()),
    ),
)


def sized(size_bytes: int) -> bytes:
    """A batch of exactly this size."""
    candidates = (batch_of(b"v" * length) for length in range(size_bytes - 80, size_bytes))
    return next(batch for batch in candidates if len(batch) == size_bytes)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_kip_74(scenario: LimitScenario) -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    for partition, sizes in enumerate(scenario.batches):
        node.create(partition=partition)
        for size_bytes in sizes:
            node.produce("orders", partition=partition, records=sized(size_bytes))
    wanted = tuple(
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=scenario.partition_max_bytes)
        for index in range(len(scenario.batches))
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=scenario.max_bytes,
        topics=(FetchTopic(topic="orders", partitions=wanted),),
    )
    response: FetchResponse = node.send(request, 12).response
    given = tuple(
        tuple(header.size_bytes for _, header in iter_batches(answer.records or b""))
        for answer in response.responses[0].partitions
    )
    assert given == scenario.then
