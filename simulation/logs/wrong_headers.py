"""A leader that gets batches whose headers contradict their records, and a log that an older release has left.

A run produces batches of some times, counts and offsets, in all codecs, with right and with wrong headers, to one
partition; then it looks records up by time, and applies retention. Then it does the same with a log that holds such
batches unchanged, as an older release stored them.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, Final, NamedTuple

from simulation.harness.breach import Breach
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import iter_batches, read_header
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import read_records
from tailrace.replication.admission import InvalidRecords
from tailrace.storage import AppendBatch, Log, ReadLimits
from tailrace.storage.flushed_note import FLUSHED_OFFSET
from tailrace.storage.log_times import UNCHECKED
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath
from testkit.records.raw_batches import raw_batch, raw_bytes, raw_record

REFUSED: Final = "a batch that no reader can parse is refused"
NAMED: Final = "the record at fault is named"
IN_ORDER: Final = "the records of a stored batch have its offsets, one each"
FOUND: Final = "a lookup finds the first record that is not older"
KEPT: Final = "retention keeps what is not old by its records"
_BATCHES: Final = 25
_HOUR_MS: Final = 3_600_000
_CONFIG: Final = TopicConfig(segment_bytes=500, index_interval_bytes=100, retention_ms=_HOUR_MS)
_OLD: Final = "/old/orders-0"


class _Sent(NamedTuple):
    """A batch, and the times of its records."""

    data: bytes
    times: Sequence[int]
    fault: str
    """The reason why no reader can parse the batch; empty if a reader can."""


def _batch(
    random: Random, now_ms: int, *, must_parse: bool = False, states_oldest: bool = False, **fields: Any
) -> _Sent:
    """A batch with times up to three hours old. Its header states the largest time right, wrong, not at all, or states
    the time of its first and oldest record."""
    count = random.randrange(1, 5)
    times = [now_ms - random.choice((0, 1, _HOUR_MS // 2, 2 * _HOUR_MS, 3 * _HOUR_MS)) for _ in range(count)]
    if states_oldest:
        times[0] = now_ms - 4 * _HOUR_MS
    stated = times[0] if states_oldest else random.choice((max(times), times[0], -1, now_ms + _HOUR_MS))
    fault = "" if must_parse else random.choice(("", "", "", "too many", "offsets", "length"))
    deltas = [random.randrange(3) for _ in times] if fault == "offsets" else range(count)
    records = [
        raw_record(delta, time - times[0], value=raw_bytes(b"v" * 40))
        for delta, time in zip(deltas, times, strict=True)
    ]
    if fault == "length":
        records[-1] = raw_record(count - 1, times[-1] - times[0], value=raw_bytes(b"v" * 40, 400))
    data = raw_batch(
        records,
        count=count + (fault == "too many"),
        codec=random.choice(tuple(Codec)),
        base_timestamp=times[0],
        max_timestamp=stated,
        **fields,
    )
    return _Sent(data, times, "" if fault == "offsets" else fault)


class _Reference:
    """The times of all records of a log, and its laws."""

    def __init__(self) -> None:
        self.times: list[int] = []

    def check_records(self, log: Log) -> None:
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            read = log.read(ReadLimits(offset, 1 << 20))
            for chunk in read.records:
                for position, header in iter_batches(chunk):
                    try:
                        offsets = [record.offset for record in read_records(chunk, position)]
                    except CorruptRecords as fault:
                        raise Breach(IN_ORDER, fault.detail) from None
                    if offsets != list(range(header.base_offset, header.end_offset)):
                        raise Breach(IN_ORDER, f"{offsets} in {header}")
            offset = read.next_offset

    def check_lookups(self, log: Log, random: Random) -> None:
        while log.times.check_on(lambda: 0):
            pass
        first = log.log_start_offset
        for time in random.sample(self.times, min(10, len(self.times))):
            expected = next((at for at in range(first, len(self.times)) if self.times[at] >= time), None)
            found = log.offset_for_timestamp(time)
            if (None if found is None else found.offset) != expected:
                raise Breach(FOUND, f"{found} at {time}, and not {expected}")
        found, largest = log.max_timestamp_offset(), max(self.times[first:])
        if found is None or (found.offset, found.timestamp) != (self.times.index(largest, first), largest):
            raise Breach(FOUND, f"{found} is the latest, and not {largest}")

    def check_retention(self, log: Log, now_ms: int) -> None:
        """Check retention as on a node: if the log has doubtful times, its records are read, and retention is applied
        again."""
        log.retention.apply(now_ms, log.log_end_offset)
        while log.times.await_check(now_ms):
            while log.times.check_on(lambda: 0):
                pass
            log.retention.apply(now_ms, log.log_end_offset)
        gone = [time for time in self.times[: log.log_start_offset] if time >= now_ms - _HOUR_MS]
        if gone:
            raise Breach(KEPT, f"{len(gone)} records are gone, the newest {now_ms - max(gone)} ms old")


def run_seed(seed: int) -> None:
    """Raises Breach."""
    random = Random(seed)
    _produce(random)
    _open_old(random)


def _produce(random: Random) -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    partition = node.create(config=_CONFIG)
    reference, now_ms = _Reference(), node.clock.now_ms()
    for _ in range(_BATCHES):
        sent = _batch(random, now_ms)
        try:
            partition.append_as_leader(
                bytearray(sent.data), acks=1, produce_version=9, now_ms=now_ms, on_done=lambda _: None
            )
        except KafkaError as refusal:
            if not sent.fault or refusal.code is not ErrorCode.INVALID_RECORD:
                raise
            if sent.fault == "length" and not (isinstance(refusal, InvalidRecords) and refusal.record_errors):
                raise Breach(NAMED, str(refusal)) from None
            continue
        if sent.fault:
            raise Breach(REFUSED, f"{sent.fault} is taken")
        reference.times += sent.times
        node.end_turn()
    reference.check_records(partition.log)
    reference.check_lookups(partition.log, random)
    reference.check_retention(partition.log, now_ms)


def _open_old(random: Random) -> None:
    """Check the directory of a release that believed headers: no note says that the headers were checked."""
    disk, now_ms, reference = SimulatedDisk(), 1_700_000_000_000, _Reference()
    log = Log.open(_OLD, files=disk, config=_CONFIG, now_ms=now_ms)
    states_oldest = random.random() < 0.5
    for _ in range(_BATCHES):
        reference.times += _append(log, random, now_ms, checked_from=0, states_oldest=states_oldest)
    log.close(clean=True)
    disk.unlink(f"{_OLD}/{FLUSHED_OFFSET}")
    disk.modified_at_ms = now_ms - random.choice((0, 2 * _HOUR_MS))
    log = Log.open(_OLD, files=disk, config=_CONFIG, now_ms=now_ms, clean=True)
    for _ in range(random.choice((0, _BATCHES // 3))):  # a follower of a leader that does not vouch
        reference.times += _append(log, random, now_ms, checked_from=UNCHECKED)
    if random.random() < 0.5:
        reference.check_retention(log, now_ms)
    reference.check_lookups(log, random)
    reference.check_retention(log, now_ms)


def _append(log: Log, random: Random, now_ms: int, *, checked_from: int, states_oldest: bool = False) -> Sequence[int]:
    """Append a batch as a producer sends it; returns the times of its records."""
    offset = log.log_end_offset
    sent = _batch(
        random, now_ms, must_parse=True, states_oldest=states_oldest, base_offset=offset, partition_leader_epoch=0
    )
    log.append([AppendBatch(sent.data, read_header(sent.data))], checked_from=checked_from)
    return sent.times
