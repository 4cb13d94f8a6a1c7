"""The reader of offset ranges without asyncio: for Spark's executors."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from tailrace.client.construction import made_of
from tailrace.client.facade import Facade, face_of
from tailrace.client.loop_thread import loop_thread
from tailrace.client.partition_names import Pair, partition_named
from tailrace.client.reader_settings import RangedFetchSettings
from tailrace.client.reading.consumer_metrics import MetricName
from tailrace.client.reading.ranged_fetch import AsyncRangedFetch, Chunk
from tailrace.model.ids import TopicId
from tailrace.model.key_ranges import KeyRange
from tailrace.protocol.schema import Buffer

if TYPE_CHECKING:
    import pyarrow as pa


@face_of(AsyncRangedFetch)
class RangedFetch(Facade[AsyncRangedFetch]):
    """See `tailrace.client.reading.ranged_fetch.AsyncRangedFetch`, whose settings it takes."""

    @made_of(RangedFetchSettings)
    def __init__(self, settings: RangedFetchSettings) -> None:
        super().__init__(partial(AsyncRangedFetch.of, settings))

    def fetch_range(
        self,
        topic_partition: Pair,
        start: int,
        end: int,
        *,
        topic_id: TopicId | None = None,
        key_ranges: tuple[KeyRange, ...] = (),
    ) -> Iterator[list[Buffer]]:
        """The batches with the offsets from `start` up to `end` (exclusive), in order, as buffers of whole batches.

        The first and the last may reach over the ends. The next fetch is in flight while the caller uses a chunk.
        See `AsyncRangedFetch.fetch_range`.
        """
        thread = loop_thread()
        process_id = os.getpid()
        client = self._client.get()
        generator = client.fetch_range(topic_partition, start, end, topic_id=topic_id, key_ranges=key_ranges)
        try:
            while True:
                chunk = thread.call(_next_chunk(generator))
                if chunk is None:
                    return
                yield chunk.buffers
        finally:
            # At the end of the interpreter the background thread has stopped already.
            if os.getpid() == process_id and not sys.is_finalizing():
                # The garbage collector may free an abandoned generator on any thread, inside any lock, also on the
                # loop's own thread. So this code does not wait for the close.
                thread.finish_later(partial(_close, generator))

    def arrow(
        self,
        topic_partition: Pair,
        start: int,
        end: int,
        *,
        columns: Sequence[str] = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
        topic_id: TopicId | None = None,
        key_ranges: tuple[KeyRange, ...] = (),
    ) -> Iterator["pa.RecordBatch"]:
        """The records of the range as Arrow, in the columns of Spark's Kafka source; needs `tailrace[arrow]`."""
        from tailrace.client.arrow import record_batches

        name = partition_named(topic_partition)
        stretches = self.fetch_range(name, start, end, topic_id=topic_id, key_ranges=key_ranges)
        return record_batches(
            chain.from_iterable(stretches),
            topic=name.topic,
            partition=name.partition,
            from_offset=start,
            until_offset=end,
            columns=columns,
            corrupt=self._client.get().corrupt,
        )

    def metrics(self) -> dict[MetricName, int]:
        """The batches that this reader has skipped since it was made, as in the metrics of a consumer."""
        return self._client.get().metrics()


async def _next_chunk(generator: Any) -> Chunk | None:
    return await anext(generator, None)


async def _close(generator: Any) -> None:
    with suppress(RuntimeError):  # the generator is running: a cancelled call is about to end it
        await generator.aclose()
