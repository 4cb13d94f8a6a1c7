"""Starts and ends by timestamp over batches that state another largest time than their records have."""

import time
from collections.abc import Callable
from functools import partial

import pytest
from pyspark.sql import DataFrame

from interop.differential.peer import Peer
from spark.reading import positions
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.records.compression import Codec
from testkit.records.raw_batches import raw_batch, raw_bytes, raw_record

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Load = Callable[..., DataFrame]
HOUR_MS = 3_600_000
MIXED, NO_TIME, LATE = range(3)
"""The partitions: the header has the old time of the first record, no time, or a time that has not come."""


def _batch(number: int, now_ms: int, stated_ms: int, codec: Codec) -> bytes:
    """A record of two hours ago and one of now, whose values are numbers."""
    old_ms = now_ms - 2 * HOUR_MS
    values = [raw_bytes(str(2 * number + index).encode()) for index in range(2)]
    records = [raw_record(0, 0, value=values[0]), raw_record(1, 2 * HOUR_MS + number, value=values[1])]
    return raw_batch(records, base_timestamp=old_ms, max_timestamp=stated_ms, codec=codec)


def _same(request: ProduceRequest, _: object) -> ProduceRequest:
    return request


def test_starts_and_ends_by_timestamp_go_by_the_records(load: Load, bootstrap: str, topic: str) -> None:
    now_ms = int(time.time() * 1000) - 60_000
    peer = Peer("node", [bootstrap])
    try:
        for partition, stated_ms in ((MIXED, now_ms - 2 * HOUR_MS), (NO_TIME, -1), (LATE, now_ms + 30_000)):
            for number, codec in enumerate(Codec):
                data = PartitionProduceData(index=partition, records=_batch(number, now_ms, stated_ms, codec))
                request = ProduceRequest(
                    acks=-1, timeout_ms=30_000, topic_data=(TopicProduceData(name=topic, partition_data=(data,)),)
                )
                answer = peer.ask("main", 9, partial(_same, request), expect_answer=True)
                assert answer.responses[0].partition_responses[0].error_code == 0
    finally:
        peer.close()
    every = [(partition, offset, str(offset)) for partition in (MIXED, NO_TIME, LATE) for offset in range(10)]
    start, end = str(now_ms - HOUR_MS), str(now_ms + 3)
    assert positions(load(startingTimestamp=start)) == [row for row in every if row[1] >= 1]
    assert positions(load(startingTimestamp=end)) == [row for row in every if row[1] >= 7]
    assert positions(load(startingTimestamp=start, endingTimestamp=end)) == [row for row in every if 1 <= row[1] < 7]
    assert positions(load(endingTimestamp=str(now_ms + 5))) == every, "no record is as late"
