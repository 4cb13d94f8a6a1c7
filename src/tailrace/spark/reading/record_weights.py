"""The bytes that the records of a batch will have, estimated from the first of each partition, on the driver."""

import logging
from time import monotonic
from typing import Final

from tailrace.client.blocking.ranged_fetch import RangedFetch
from tailrace.client.reader_settings import RangedFetchSettings
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark.offsets import Offsets
from tailrace.spark.reading.source_options import SourceOptions

_log = logging.getLogger(__name__)

_SAMPLE_BYTES: Final = 65_536
_SAMPLE_TIMEOUT_MS: Final = 2_000
_MOST_SAMPLES: Final = 32
"""The most partitions that are measured for one batch, the partitions with the oldest trial first."""
_LONGEST_S: Final = 4.0
"""The time after which no further partition is tried for one batch: the batch waits, and a broker may be away."""
_UNKNOWN: Final = 1_024.0
"""The bytes of an offset while no partition could be measured."""


class RecordWeights:
    """The bytes of key and value for each offset, by partition. Holds connections until `close`.

    Offsets, not records: compaction and transactions leave gaps, and a plan counts offsets.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._fetch = RangedFetch.of(
            RangedFetchSettings.on(
                options.cluster.settings(),
                isolation=options.isolation,
                max_bytes=_SAMPLE_BYTES,
                timeout_ms=_SAMPLE_TIMEOUT_MS,
                rack=options.client_rack,
            )
        )
        self._weights: dict[TopicPartition, float] = {}
        self._tried: dict[TopicPartition, None] = {}
        """The partitions that were tried, in the order of the last trial."""

    def close(self) -> None:
        self._fetch.close()

    def of(self, start: Offsets, end: Offsets) -> dict[TopicPartition, float]:
        """The bytes of an offset in each partition that has offsets between `start` and `end`.

        A partition that was not measured yet, or has a fault that its task will meet, counts as the mean of the other
        partitions.
        """
        waiting = [tp for tp in sorted(end) if start.get(tp, end[tp]) < end[tp]]
        tried = {tp: place for place, tp in enumerate(self._tried)}
        deadline = monotonic() + _LONGEST_S
        for tp in sorted(waiting, key=lambda tp: tried.get(tp, -1))[:_MOST_SAMPLES]:
            if monotonic() >= deadline:
                break
            self._tried.pop(tp, None)
            self._tried[tp] = None
            try:
                self._measure(tp, start[tp], end[tp])
            except KafkaError as fault:
                _log.warning("the size of the records of %s is not known: %s", tp, fault)
        mean = sum(self._weights.values()) / len(self._weights) if self._weights else _UNKNOWN
        return {tp: self._weights.get(tp, mean) for tp in waiting}

    def _measure(self, tp: TopicPartition, start: int, end: int) -> None:
        for batch in self._fetch.arrow(tp, start, end, columns=("key", "value", "offset")):
            offsets = batch.column("offset")[-1].as_py() + 1 - start
            size = batch.column("key").nbytes + batch.column("value").nbytes
            self._weights[tp] = size / offsets
            return
        self._weights[tp] = 0.0  # without any record the offsets are gaps
