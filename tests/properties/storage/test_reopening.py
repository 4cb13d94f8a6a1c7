"""A log that is reopened from what was noted at its close is the log that its files give."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.topic_config import TopicConfig
from tailrace.storage import ClosedLog, Log, ReadLimits
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch
from testkit.records.compaction import compact

DIRECTORY = "/logs/orders-0"
NOW = FIRST_TIMESTAMP_MS

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4), st.sampled_from((-1, 7, 8))),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
        st.tuples(st.just("lead"), st.just(0), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(0, 12), st.just(0)),
        st.tuples(st.just("start"), st.integers(0, 12), st.just(0)),
        st.tuples(st.just("retain"), st.just(0), st.just(0)),
        st.tuples(st.just("compact"), st.just(0), st.just(0)),
        st.tuples(st.just("expire"), st.just(0), st.just(0)),
        st.tuples(st.just("close"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


class Story:
    """A log that goes through the drawn steps."""

    def __init__(self, *, is_compacted: bool) -> None:
        self.disk = SimulatedDisk()
        policy = ("compact", "delete") if is_compacted else ("delete",)
        self.config = TopicConfig(
            segment_bytes=300, index_interval_bytes=100, retention_bytes=700, cleanup_policy=policy
        )
        self.log = Log.open(DIRECTORY, files=self.disk, config=self.config, now_ms=NOW)
        self.epoch = 0

    def tell(self, step: str, number: int, producer_id: int) -> None:
        log = self.log
        match step:
            case "append":
                known = log.producers.producers.get(producer_id)
                sequence = known.batches[-1].last_sequence + 1 if known is not None and known.batches else 0
                batch = stored_batch(
                    log.log_end_offset,
                    number,
                    leader_epoch=self.epoch,
                    producer_id=producer_id,
                    base_sequence=sequence if producer_id >= 0 else -1,
                )
                log.append([batch])
            case "flush":
                log.flush()
            case "lead":
                self.epoch += 1
                log.epochs.assign(self.epoch, log.log_end_offset)
            case "truncate":
                log.truncate_to(max(log.log_end_offset - number, log.log_start_offset))
                self.epoch = max(self.epoch, log.epochs.latest_epoch)
            case "start":
                log.advance_log_start(min(log.log_start_offset + number, log.log_end_offset))
            case "retain":
                log.retention.apply(NOW, log.log_end_offset)
            case "compact" if self.config.is_compacted:
                log.flush()
                compact(log, NOW, end_offset=log.log_end_offset)
            case "expire":
                log.producers.expire(NOW + 10**9, expiration_ms=10**6)
            case "close":
                self.close_and_compare()

    def close_and_compare(self) -> None:
        log = self.log
        log.close()
        closed = log.closed
        fast = None
        if closed is not None:
            assert ClosedLog.from_line(closed.to_line()) == closed
            operations = self.disk.operations
            fast = Log.reopen(DIRECTORY, closed, files=self.disk, config=self.config)
            assert self.disk.operations == operations, "nothing on the disk is changed"
        slow = Log.open(
            DIRECTORY,
            files=self.disk,
            config=self.config,
            now_ms=NOW,
            recovery_point=log.flushed_offset,
            log_start_offset=log.log_start_offset,
            first_dirty_offset=log.compactions.first_dirty_offset,
            clean=True,
        )
        if fast is not None:
            # Producers that were forgotten for their silence are still in the snapshot; they are forgotten again.
            assert fast.producers.producers.items() <= slow.producers.producers.items()
            assert fast.producers.producers == log.producers.producers
            assert state_of(fast) == state_of(slow)
            assert contents(fast) == contents(slow)
        self.log = slow if fast is None else fast


def state_of(log: Log) -> tuple[object, ...]:
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.flushed_offset,
        log.size_bytes,
        log.segment_count,
        log.epochs.entries,
        log.compactions.first_dirty_offset,
        log.max_timestamp_offset(),
        log.offset_for_timestamp(FIRST_TIMESTAMP_MS + 3),
    )


def contents(log: Log) -> list[tuple[int, bytes]]:
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(ReadLimits(offset, 200))
        if not result.size_bytes:
            break
        found.append((result.first_offset, b"".join(result.records)))
        offset = result.next_offset
    return found


@given(steps=STEPS, is_compacted=st.booleans())
def test_reopening_is_opening(steps: list[tuple[str, int, int]], is_compacted: bool) -> None:
    story = Story(is_compacted=is_compacted)
    for step in steps:
        story.tell(*step)
    story.close_and_compare()
