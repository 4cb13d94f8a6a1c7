"""The lags of groups for one scrape: by group and topic, each undone record once."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.server.groups.group_lags import GroupLags, Records
from tailrace.server.groups.host import GroupCoordinatorService

MOST_LAGS: Final = 10_000
"""The most partitions with offsets of groups that are measured at a scrape; topics of groups beyond have no row."""
_SCANS: Final = 20
"""The most scans of 10 ms that read records here at a scrape, to count the records of slots."""
_SLICE: Final = 50
_ANSWER_S: Final = 5.0


class CommittedPartition(NamedTuple):
    """The progress of a group in a partition."""

    group: str
    partition: TopicPartition
    offset: int
    ahead: int
    """About the number of done records beyond the offset."""


async def measure_lags(coordinators: GroupCoordinatorService, lags: GroupLags) -> Mapping[tuple[str, str], int]:
    """The records that groups of this coordinator have not done, by group and topic. A topic of which the records of
    some partition are not known is left out. Takes turns with the requests."""
    try:
        committed = _committed(coordinators)
    except KafkaError:
        return {}
    if not committed:
        return {}
    known: dict[tuple[str, TopicPartition], int] = {}
    elsewhere: dict[tuple[BrokerId, str], dict[TopicPartition, int]] = defaultdict(dict)
    scan, scans = lags.new_scan(), 1
    for number, found in enumerate(committed):
        leader = lags.other_leader(found.partition)
        if leader is not None:
            elsewhere[leader, found.group][found.partition] = found.offset
            continue
        records = lags.here(found.partition, found.offset, scan)
        if records is not None:
            known[found.group, found.partition] = records
        if number % _SLICE == _SLICE - 1 or scan.is_over:
            await asyncio.sleep(0)
            if scans < _SCANS and scan.is_over:
                scan, scans = lags.new_scan(), scans + 1
    answers = await asyncio.gather(*(_asked(lags, leader, wanted) for (leader, _), wanted in elsewhere.items()))
    for (_, group), records_of in zip(elsewhere, answers, strict=True):
        known |= {(group, partition): records for partition, records in records_of.items()}
    sums: dict[tuple[str, str], int] = defaultdict(int)
    unknown: set[tuple[str, str]] = set()
    for found in committed:
        records, name = known.get((found.group, found.partition)), (found.group, found.partition.topic)
        if records is None:
            unknown.add(name)
        else:
            sums[name] += max(records - found.ahead, min(records, 1))
    return {name: records for name, records in sums.items() if name not in unknown}


def _committed(coordinators: GroupCoordinatorService) -> list[CommittedPartition]:
    """The progress of whole groups, up to the limit. Raises KafkaError while a coordinator is loading."""
    found: list[CommittedPartition] = []
    for group in _groups(coordinators):
        if len(found) + len(group) <= MOST_LAGS:
            found += group
    return found


def _groups(coordinators: GroupCoordinatorService) -> Iterator[list[CommittedPartition]]:
    for host in coordinators.active_hosts():
        ranged = coordinators.ranged_offsets
        for group_id in tuple(host.machine.committed.groups):
            offsets = host.machine.reports.offsets(group_id)
            yield [
                CommittedPartition(
                    group_id, partition, value.offset, ranged.progress(value).committed.ahead if value.ranges else 0
                )
                for partition, value in offsets.items()
                if value.offset >= 0
            ]


async def _asked(lags: GroupLags, leader: BrokerId, committed: Records) -> Records:
    answer: asyncio.Future[Records] = asyncio.get_running_loop().create_future()

    def known(records: Records) -> None:
        if not answer.done():
            answer.set_result(records)

    lags.ask(leader, committed, known)
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await answer
    except TimeoutError:  # this node is stopping: no answer comes any more
        return {}
