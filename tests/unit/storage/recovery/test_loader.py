"""Trust, checks and cuts when a log is opened."""

from dataclasses import replace

import pytest

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import AppendBatch, DamagedLog, Duplicate, Log, ReadLimits, checkpoints
from tailrace.storage.flushed_note import FLUSHED_OFFSET, read_note
from tailrace.storage.producers.snapshot_format import encode_snapshot
from tailrace.storage.producers.state import ProducerState
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch, stored_marker

DIRECTORY = "/data/orders-0"
CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=200, retention_ms=-1)
COMPACTED = TopicConfig(cleanup_policy=("compact",))
COUNT = 30


@pytest.fixture
def disk() -> SimulatedDisk:
    """A disk with a log of 30 batches of one record, flushed, not closed."""
    disk = SimulatedDisk()
    log = open_log(disk)
    for offset in range(COUNT):
        log.append([stored_batch(offset, producer_id=4, base_sequence=offset, leader_epoch=offset // 12)])
    log.flush()
    return disk


def open_log(disk: SimulatedDisk, *, recovery_point: int = 0, clean: bool = False, **options: bool | int) -> Log:
    return Log.open(
        DIRECTORY,
        files=disk,
        config=CONFIG,
        now_ms=0,
        recovery_point=recovery_point,
        clean=clean,
        **options,  # type: ignore[arg-type]
    )


def path_of(base_offset: int, suffix: str = ".log") -> str:
    return f"{DIRECTORY}/{base_offset:020d}{suffix}"


def segments(disk: SimulatedDisk) -> list[int]:
    return [int(name[:20]) for name in disk.list_dir(DIRECTORY) if name.endswith(".log")]


def append_raw(disk: SimulatedDisk, base_offset: int, content: bytes) -> None:
    file = disk.open(path_of(base_offset))
    file.writev([content])
    file.sync()


def forget_note(disk: SimulatedDisk) -> None:
    """Remove the log's own note of its flushed end: then only the checkpoints of the node have it."""
    disk.unlink(f"{DIRECTORY}/{FLUSHED_OFFSET}")


def tree(disk: SimulatedDisk) -> dict[str, bytes]:
    return {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in disk.list_dir(DIRECTORY)}


def test_only_segments_from_the_recovery_point_on_are_checked(disk: SimulatedDisk) -> None:
    bases = segments(disk)
    report = open_log(disk, recovery_point=COUNT).recovery
    assert (report.segments_checked, report.batches_checked) == (1, COUNT - bases[-1])
    report = open_log(disk, recovery_point=bases[1]).recovery
    assert report.segments_checked == len(bases) - 1
    report = open_log(disk).recovery
    assert (report.segments_checked, report.records_checked) == (len(bases), COUNT)
    assert not report.clean
    assert not report.damaged
    assert (report.bytes_cut, report.cut_reason) == (0, "")


SIZE = len(stored_batch(0, producer_id=4).buffer)
NEXT = bytes(stored_batch(COUNT, producer_id=4, base_sequence=COUNT, leader_epoch=2).buffer)


@pytest.mark.parametrize(
    "tail",
    [
        NEXT[:1],
        NEXT[:60],
        NEXT[:-1],
        bytes(500),
        bytes(7),
        stored_batch(COUNT + 1, leader_epoch=2).buffer,
        stored_batch(COUNT - 1, leader_epoch=2).buffer,
        stored_batch(COUNT, leader_epoch=1).buffer,
        NEXT[:-1] + b"!",
        b"\xff" * 200,
    ],
    ids=["byte", "header", "cut", "zeros", "few zeros", "gap", "again", "old epoch", "checksum", "garbage"],
)
def test_a_bad_tail_above_the_recovery_point_is_cut_and_reported(disk: SimulatedDisk, tail: bytes) -> None:
    active = segments(disk)[-1]
    good = disk.read_bytes(path_of(active))
    append_raw(disk, active, tail)
    log = open_log(disk, recovery_point=COUNT)
    assert log.log_end_offset == log.flushed_offset == COUNT
    assert log.recovery.bytes_cut == len(tail)
    assert f"{path_of(active)} at position {len(good)}" in log.recovery.cut_reason
    assert disk.read_bytes(path_of(active)) == good
    before = tree(disk)
    assert open_log(disk, recovery_point=COUNT).recovery.bytes_cut == 0
    assert tree(disk) == before


def test_a_good_tail_above_the_recovery_point_is_kept(disk: SimulatedDisk) -> None:
    append_raw(disk, segments(disk)[-1], NEXT)
    log = open_log(disk, recovery_point=COUNT)
    assert log.log_end_offset == COUNT + 1
    assert log.producers.check(stored_batch(0, producer_id=4, base_sequence=COUNT).header) == Duplicate(
        COUNT, COUNT, FIRST_TIMESTAMP_MS + COUNT
    )


@pytest.mark.parametrize("position", [0, 8, 20, 70, SIZE + 20, 3 * SIZE + 65])
def test_damage_below_the_recovery_point_is_not_cut_but_reported(disk: SimulatedDisk, position: int) -> None:
    active = segments(disk)[-1]
    disk.flip_bit(path_of(active), position, 6)
    before = tree(disk)
    start = position // SIZE * SIZE
    with pytest.raises(CorruptRecords, match=rf"{active:020d}\.log at position {start}"):
        open_log(disk, recovery_point=COUNT)
    assert tree(disk) == before


@pytest.mark.parametrize("last", [0, 1])
def test_an_offset_that_does_not_follow_is_damage_after_a_clean_stop_too(disk: SimulatedDisk, last: int) -> None:
    """Found by fuzzing: no checksum covers the base offset, and the log would go on from 2^24 more."""
    active = segments(disk)[-1]
    position = disk.size_of(path_of(active)) - SIZE if last else SIZE
    disk.flip_bit(path_of(active), position + 4)
    with pytest.raises(CorruptRecords, match=rf"position {position}: offset 1677"):
        open_log(disk, recovery_point=COUNT, clean=True)


def test_a_damaged_log_can_be_read_up_to_the_damage_and_not_written(disk: SimulatedDisk) -> None:
    active = segments(disk)[-1]
    disk.flip_bit(path_of(active), 2 * SIZE + 70)
    before = tree(disk)
    log = open_log(disk, recovery_point=COUNT, allow_damage=True)
    assert log.recovery.damaged
    assert log.log_end_offset == active + 2
    assert log.read(ReadLimits(0, 1)).first_offset == 0
    assert log.read(ReadLimits(active + 1, 10**6)).next_offset == active + 2
    with pytest.raises(StorageError, match="is offline"):
        log.append([stored_batch(active + 2, leader_epoch=3)])
    log.close()
    assert tree(disk) == before


def test_a_log_shorter_than_its_recovery_point_is_damaged(disk: SimulatedDisk) -> None:
    disk.unlink(path_of(segments(disk)[-1]))
    with pytest.raises(CorruptRecords, match=f"was flushed up to {COUNT}"):
        open_log(disk, recovery_point=COUNT)
    forget_note(disk)
    assert open_log(disk).recovery.damage is None


def test_a_missing_segment_is_damage_or_the_end(disk: SimulatedDisk) -> None:
    first, second, *_ = segments(disk)
    disk.unlink(path_of(second))
    with pytest.raises(CorruptRecords, match=f"the segment before it ends at offset {second}"):
        open_log(disk, recovery_point=COUNT - COUNT + second + 1)
    forget_note(disk)
    log = open_log(disk)
    assert log.log_end_offset == second
    assert segments(disk) == [first]
    assert log.recovery.segments_removed >= 1


def test_a_fault_in_an_older_unflushed_segment_takes_the_newer_ones_too(disk: SimulatedDisk) -> None:
    first, second, *later = segments(disk)
    disk.flip_bit(path_of(second), SIZE + 70)
    forget_note(disk)
    log = open_log(disk, recovery_point=second)
    assert log.log_end_offset == second + 1
    assert segments(disk) == [first, second]
    assert log.recovery.segments_removed == len(later)
    assert log.recovery.bytes_cut == (COUNT - second - 1) * SIZE
    assert [int(name[:20]) for name in disk.list_dir(DIRECTORY) if name.endswith(".snapshot")] == [second]
    assert log.epochs.entries == ((0, 0),) if second < 12 else log.epochs.entries[-1].start_offset <= second


def log_with_gaps() -> SimulatedDisk:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, files=disk, config=COMPACTED, now_ms=0)
    log.append([stored_batch(0), stored_batch(5), stored_batch(9)])
    log.flush()
    return disk


def test_offsets_with_gaps_are_right_in_a_compacted_log_only() -> None:
    disk = log_with_gaps()
    disk.unlink(f"{DIRECTORY}/{checkpoints.GAP_BOUND}")
    assert Log.open(DIRECTORY, files=disk, config=COMPACTED, now_ms=0, recovery_point=10).log_end_offset == 10
    forget_note(disk)
    assert Log.open(DIRECTORY, files=disk, config=CONFIG, now_ms=0).log_end_offset == 1


def test_gaps_of_a_log_that_was_compacted_once_stay_right_for_good() -> None:
    disk = log_with_gaps()
    log = Log.open(DIRECTORY, files=disk, config=CONFIG, now_ms=0, recovery_point=10)
    assert log.log_end_offset == 10
    assert log.read(ReadLimits(1, 1)).first_offset == 5


def test_a_gap_above_the_bound_is_damage_also_in_a_compacted_log() -> None:
    disk = log_with_gaps()
    checkpoints.write_gap_bound(disk, DIRECTORY, 5)
    with pytest.raises(CorruptRecords, match="offset 9 follows offset 5"):
        Log.open(DIRECTORY, files=disk, config=COMPACTED, now_ms=0, recovery_point=10)


@pytest.mark.parametrize("config", [CONFIG, COMPACTED], ids=["delete", "compact"])
def test_a_bound_of_gaps_that_cannot_be_read_costs_an_operator_no_record(config: TopicConfig) -> None:
    """That there is such a file says that offsets may be missing, whatever the settings say today."""
    disk = log_with_gaps()
    disk.sync_dir("/")  # the name of /data
    disk.flip_bit(f"{DIRECTORY}/{checkpoints.GAP_BOUND}", 0)
    with pytest.raises(CorruptRecords, match=checkpoints.GAP_BOUND):
        Log.open(DIRECTORY, files=disk, config=config, now_ms=0)
    log = Log.open(DIRECTORY, files=disk, config=config, now_ms=0, cuts_damage=True)
    assert (log.log_end_offset, log.recovery.cut_reason, log.recovery.lost_acknowledged) == (10, "", False)
    log.close(clean=False)
    disk.power_cut()
    disk.reboot()
    again = Log.open(DIRECTORY, files=disk, config=config, now_ms=0)
    assert again.log_end_offset == 10
    assert [again.read(ReadLimits(offset, 1)).first_offset for offset in (0, 1, 6)] == [0, 5, 9]


def test_above_the_flushed_end_no_gap_is_legal_if_their_bound_cannot_be_read() -> None:
    """The gap would be a part of a torn write that is lost."""
    disk = log_with_gaps()
    log = Log.open(DIRECTORY, files=disk, config=COMPACTED, now_ms=0)
    log.append([stored_batch(10), stored_batch(15)])
    disk.flip_bit(f"{DIRECTORY}/{checkpoints.GAP_BOUND}", 0)
    again = Log.open(DIRECTORY, files=disk, config=COMPACTED, now_ms=0, cuts_damage=True)
    assert (again.log_end_offset, again.recovery.lost_acknowledged) == (11, False)
    assert checkpoints.read_gap_bound(disk, DIRECTORY) == 10


@pytest.mark.parametrize("clean", [False, True])
def test_a_follower_accepts_the_gaps_of_a_leader_whose_topic_was_compacted_once(clean: bool) -> None:
    """The settings say `delete` since before this replica was there; so nothing here knows of gaps."""
    disk = SimulatedDisk.with_directory("/data")
    log = open_log(disk)
    log.append([stored_batch(0)])
    with pytest.raises(AssertionError):
        log.append([stored_batch(5)])
    log.append([stored_batch(5)], may_have_gaps=True)
    log.append([stored_batch(9), stored_batch(10)], may_have_gaps=True)
    if clean:
        log.close()
    else:
        log.flush()
        disk.power_cut()
        disk.reboot()
    again = open_log(disk, recovery_point=11, clean=clean)
    assert (again.log_end_offset, again.recovery.cut_reason) == (11, "")
    assert [again.read(ReadLimits(offset, 1)).first_offset for offset in (0, 1, 6, 10)] == [0, 5, 9, 10]


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("harm", ["missing", "empty", "torn", "garbage"])
def test_a_missing_or_wrong_index_is_made_anew(disk: SimulatedDisk, harm: str, clean: bool) -> None:
    open_log(disk).close()
    good = tree(disk)
    for name in [name for name in good if name.endswith("index")]:
        path = f"{DIRECTORY}/{name}"
        disk.unlink(path)
        if harm != "missing":
            file = disk.open(path, create=True)
            file.writev([{"empty": b"", "torn": good[name][:-3] + b"\0\0", "garbage": b"\xff" * 40}[harm]])
    log = open_log(disk, recovery_point=COUNT, clean=clean)
    for offset in range(COUNT):
        assert log.read(ReadLimits(offset, 1)).first_offset == offset
        found = log.offset_for_timestamp(FIRST_TIMESTAMP_MS + offset)
        assert found is not None
        assert found.offset == offset


def test_after_a_crash_a_snapshot_above_the_recovery_point_is_not_believed_at_the_next_start_either() -> None:
    """A roll writes the snapshot before its batches are durable: a power cut may keep it and take the batches."""
    disk = SimulatedDisk()
    log = open_log(disk)
    for offset in range(3):
        log.append([stored_batch(offset, producer_id=4, base_sequence=offset)])
    stray = ProducerState()
    for offset in range(3):
        stray.apply(stored_batch(offset, producer_id=9, base_sequence=offset).header)
    disk.write_durably(path_of(3, ".snapshot"), encode_snapshot(stray.producers))
    log = open_log(disk)
    assert list(log.producers.producers) == [4]
    log.close()
    closed = log.closed
    assert closed is not None
    assert list(Log.reopen(DIRECTORY, closed, files=disk, config=CONFIG).producers.producers) == [4]
    assert list(open_log(disk, recovery_point=3, clean=True).producers.producers) == [4]


def test_a_corrupt_producer_snapshot_is_dropped_for_an_older_one(disk: SimulatedDisk) -> None:
    open_log(disk).close()
    newest = max(int(name[:20]) for name in disk.list_dir(DIRECTORY) if name.endswith(".snapshot"))
    assert newest == COUNT
    disk.flip_bit(path_of(newest, ".snapshot"), 12)
    log = open_log(disk, clean=True)
    assert log.recovery.snapshots_discarded == 1
    assert not disk.exists(path_of(newest, ".snapshot"))
    for back in range(1, 6):
        offset = COUNT - back
        if offset > segments(disk)[-1]:
            assert log.producers.check(stored_batch(0, producer_id=4, base_sequence=offset).header) is not None


def test_producers_after_recovery_are_those_of_a_full_replay(disk: SimulatedDisk) -> None:
    expected = open_log(disk).producers.producers
    for name in disk.list_dir(DIRECTORY):
        if name.endswith(".snapshot"):
            disk.unlink(f"{DIRECTORY}/{name}")
    assert open_log(disk).producers.producers == expected


@pytest.mark.parametrize("content", [None, b"garbage", b"0\n0\n"])
def test_epochs_are_found_in_the_batches(disk: SimulatedDisk, content: bytes | None) -> None:
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    disk.unlink(path)
    if content is not None:
        disk.open(path, create=True).writev([content])
    assert open_log(disk).epochs.entries == ((0, 0), (1, 12), (2, 24))


def test_an_epoch_without_records_is_forgotten(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    log.epochs.assign(9, COUNT)
    log.flush()
    assert open_log(disk, recovery_point=COUNT).epochs.latest_epoch == 2


def test_leftovers_are_removed(disk: SimulatedDisk) -> None:
    for name in ("x.tmp", f"{5:020d}.index", f"{5:020d}.timeindex.deleted"):
        disk.open(f"{DIRECTORY}/{name}", create=True)
    disk.open(f"{DIRECTORY}/notes.txt", create=True)
    open_log(disk)
    left = disk.list_dir(DIRECTORY)
    assert "notes.txt" in left
    assert not [name for name in left if name.endswith((".tmp", ".deleted")) or name.startswith(f"{5:020d}")]


def test_a_half_done_retention_is_finished(disk: SimulatedDisk) -> None:
    first, second, third, *_ = segments(disk)
    disk.rename(path_of(second), path_of(second, ".log.deleted"))
    log = open_log(disk, recovery_point=COUNT)
    assert log.log_start_offset == third
    assert segments(disk)[0] == third
    assert not disk.exists(path_of(first, ".index"))


@pytest.mark.parametrize("clean", [False, True])
def test_a_truncation_by_kafka_proves_nothing_about_the_segments_before_it(disk: SimulatedDisk, clean: bool) -> None:
    """Kafka renames what it cuts off as what it retires, and removes it a minute later if it still runs."""
    open_log(disk).close()
    *kept, last_but_one, last = segments(disk)
    for base_offset in (last_but_one, last):
        disk.rename(path_of(base_offset), path_of(base_offset, ".log.deleted"))
    disk.unlink(path_of(COUNT, ".snapshot"))
    if not clean:
        forget_note(disk)  # after Kafka's clean stop what we once noted does not count
    log = open_log(disk, recovery_point=last_but_one, clean=clean)
    assert (log.log_start_offset, log.log_end_offset) == (0, last_but_one)
    assert segments(disk) == kept
    assert not [name for name in disk.list_dir(DIRECTORY) if name.endswith(".deleted")]


def test_a_truncation_by_kafka_proves_nothing_after_later_appends_either(disk: SimulatedDisk) -> None:
    """Behind the cut its segments begin elsewhere."""
    first, second, third, *_ = segments(disk)
    disk.open(path_of(third - 1, ".log.deleted"), create=True).writev([b"cut off"])
    log = open_log(disk, recovery_point=COUNT)
    assert (log.log_start_offset, log.log_end_offset) == (0, COUNT)
    assert segments(disk)[:3] == [first, second, third]


def test_a_compaction_by_kafka_proves_nothing_about_the_segment_that_it_wrote(disk: SimulatedDisk) -> None:
    first, second, third, *_ = segments(disk)
    for base_offset in (first, second):
        content = disk.read_bytes(path_of(base_offset))
        disk.open(path_of(base_offset, ".log.deleted"), create=True).writev([content])
    disk.unlink(path_of(second))
    log = Log.open(DIRECTORY, files=disk, config=COMPACTED, now_ms=0, recovery_point=COUNT)
    assert (log.log_start_offset, log.log_end_offset) == (0, COUNT)
    assert segments(disk)[:2] == [first, third]


@pytest.mark.parametrize("is_durable", [False, True], ids=["page-cache", "flushed"])
def test_a_log_that_ends_below_its_start_begins_there_anew(disk: SimulatedDisk, is_durable: bool) -> None:
    """Unless the log was promised to be flushed to its end, a power cut may have taken the later records."""
    if is_durable:
        forget_note(disk)
    log = open_log(disk, log_start_offset=COUNT + 20, is_durable=is_durable)
    assert (log.log_start_offset, log.log_end_offset) == (COUNT + 20, COUNT + 20)
    assert segments(disk) == [COUNT + 20]
    assert log.recovery.bytes_cut == COUNT * SIZE
    assert log.recovery.ignored_log_start is None


@pytest.mark.parametrize(
    ("recovery_point", "clean", "has_note"),
    [(0, False, True), (COUNT, False, False), (COUNT // 2, False, True), (COUNT, True, True), (COUNT, True, False)],
)
def test_a_log_start_above_the_end_of_a_log_that_is_whole_is_ignored(
    disk: SimulatedDisk, recovery_point: int, clean: bool, has_note: bool
) -> None:
    """The checkpoint of log starts has no checksum. A log start is never above the flushed end; all below is there."""
    if clean:
        open_log(disk).close()
    if not has_note:
        forget_note(disk)
    log = open_log(disk, recovery_point=recovery_point, clean=clean, log_start_offset=COUNT + 20)
    assert (log.log_start_offset, log.log_end_offset) == (0, COUNT)
    check_that_nothing_is_missing(log)
    assert log.recovery.ignored_log_start == COUNT + 20
    assert not log.recovery.lost_acknowledged
    assert log.recovery.bytes_cut == 0


def test_a_log_start_that_is_ignored_leaves_the_epochs_of_the_whole_log(disk: SimulatedDisk) -> None:
    """The file of leader epochs begins where the log did, perhaps within a segment."""
    log = open_log(disk)
    log.advance_log_start(14)
    log.close()
    log = open_log(disk, recovery_point=COUNT, clean=True, log_start_offset=COUNT + 20)
    assert log.epochs.entries == ((0, 0), (1, 12), (2, 24))


def test_the_flushed_offset_of_an_earlier_log_does_not_judge_the_log_start(disk: SimulatedDisk) -> None:
    """The log was begun anew; nothing of it was flushed yet when its log start was noted and the power went."""
    log = open_log(disk)
    log.truncate_fully_and_start_at(COUNT)
    log.flush()
    log.append([stored_batch(COUNT)])
    log = open_log(disk, recovery_point=COUNT, log_start_offset=COUNT + 20)
    assert (log.log_start_offset, log.log_end_offset) == (COUNT + 20, COUNT + 20)
    assert log.recovery.ignored_log_start is None


def test_a_log_start_above_the_end_of_a_log_that_was_cut_for_its_damage_is_believed(disk: SimulatedDisk) -> None:
    """An operator has chosen to lose what lies behind: the log was flushed further than it goes now."""
    base_offset = segments(disk)[1]
    content = bytearray(disk.read_bytes(path_of(base_offset)))
    content[SIZE - 1] ^= 1
    disk.unlink(path_of(base_offset))
    disk.open(path_of(base_offset), create=True).writev([content])
    log = open_log(disk, log_start_offset=COUNT - 1, cuts_damage=True, check_from=base_offset)
    assert (log.log_start_offset, log.log_end_offset) == (COUNT - 1, COUNT - 1)
    assert log.recovery.ignored_log_start is None


def test_a_broken_tail_of_a_cleanly_closed_log_is_damage(disk: SimulatedDisk) -> None:
    open_log(disk).close()
    append_raw(disk, segments(disk)[-1], b"x" * 100)
    with pytest.raises(CorruptRecords, match="at position"):
        open_log(disk, clean=True)


def test_every_single_bit_of_a_batch_is_watched() -> None:
    batch: AppendBatch = stored_batch(0, 2, leader_epoch=1)
    for bit in range(8 * len(batch.buffer)):
        disk = SimulatedDisk()
        log = open_log(disk)
        log.append([batch, stored_batch(2, leader_epoch=1)])
        log.flush()
        disk.flip_bit(path_of(0), bit // 8, bit % 8)
        with pytest.raises(CorruptRecords):
            open_log(disk, recovery_point=3)


@pytest.mark.parametrize("position", [0, 8, 70], ids=["offset", "length", "record"])
@pytest.mark.parametrize("batch", [0, 3, COUNT - 1])
def test_damage_above_the_recovery_point_is_damage_as_far_as_the_log_was_flushed(
    disk: SimulatedDisk, batch: int, position: int
) -> None:
    """No checkpoint was written since these batches were flushed, and acknowledged."""
    base = max(base for base in segments(disk) if base <= batch)
    disk.flip_bit(path_of(base), (batch - base) * SIZE + position, 5)
    before = tree(disk)
    with pytest.raises(DamagedLog, match=f"position {(batch - base) * SIZE}") as refused:
        open_log(disk)
    damage = refused.value.damage
    assert (damage.path, damage.good_end_offset, damage.flushed_end_offset) == (path_of(base), batch, COUNT)
    assert tree(disk) == before
    report = open_log(disk, allow_damage=True).recovery
    assert report.lost_acknowledged
    assert (report.end_offset, report.acknowledged_end_offset) == (batch, COUNT)


def test_damage_below_the_checkpointed_high_watermark_is_damage(disk: SimulatedDisk) -> None:
    """The note of the flushed end may be lost in a power cut; what is below the high watermark was flushed."""
    active = segments(disk)[-1]
    disk.flip_bit(path_of(active), SIZE + 70)
    forget_note(disk)
    with pytest.raises(DamagedLog, match=f"flushed up to {active + 2}"):
        open_log(disk, high_watermark=active + 2)
    assert not open_log(disk, high_watermark=active + 1).recovery.lost_acknowledged
    assert open_log(disk, high_watermark=active + 1).log_end_offset == active + 1


def test_under_page_cache_durability_a_loss_below_the_high_watermark_is_cut_and_reported(disk: SimulatedDisk) -> None:
    active = segments(disk)[-1]
    disk.flip_bit(path_of(active), SIZE + 70)
    forget_note(disk)
    log = open_log(disk, high_watermark=COUNT, is_durable=False)
    assert log.log_end_offset == active + 1
    assert log.recovery.lost_acknowledged
    assert not log.recovery.damaged
    log.append([stored_batch(active + 1, leader_epoch=3)])


def test_a_torn_write_is_cut_although_good_batches_follow_it(disk: SimulatedDisk) -> None:
    """A power cut keeps some pages of what was never flushed, and not those before."""
    active = segments(disk)[-1]
    tail = [stored_batch(COUNT + number, leader_epoch=2).buffer for number in range(3)]
    append_raw(disk, active, bytes(len(tail[0])) + tail[1] + tail[2])
    log = open_log(disk)
    assert (log.log_end_offset, log.recovery.lost_acknowledged) == (COUNT, False)
    assert log.recovery.cut_reason


def test_damage_can_be_cut_if_an_operator_says_so(disk: SimulatedDisk) -> None:
    active = segments(disk)[-1]
    disk.flip_bit(path_of(active), SIZE + 70)
    log = open_log(disk, recovery_point=COUNT, cuts_damage=True)
    assert log.log_end_offset == log.flushed_offset == active + 1
    assert log.recovery.lost_acknowledged
    assert open_log(disk).log_end_offset == active + 1


@pytest.mark.parametrize("segment", [0, 1])
def test_after_damage_was_cut_the_note_promises_no_more(disk: SimulatedDisk, segment: int) -> None:
    base = segments(disk)[segment]
    disk.flip_bit(path_of(base), 70)
    log = open_log(disk, cuts_damage=True)
    assert log.log_end_offset == base
    assert log.recovery.lost_acknowledged
    log.close(clean=False)
    note = read_note(disk, DIRECTORY)
    assert note is not None
    assert note.offset == base
    again = open_log(disk)
    assert (again.log_end_offset, again.recovery.lost_acknowledged) == (base, False)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("bit", range(32))
def test_a_flipped_bit_in_a_leader_epoch_is_damage_of_that_batch(disk: SimulatedDisk, bit: int, clean: bool) -> None:
    """No checksum covers the epoch. The file of epochs proves it, as far as the file is known to be whole."""
    active = segments(disk)[-1]
    disk.flip_bit(path_of(active), SIZE + 12 + bit // 8, bit % 8)
    with pytest.raises(DamagedLog, match=f"position {SIZE}: leader epoch"):
        open_log(disk, recovery_point=COUNT, clean=clean)


@pytest.mark.parametrize("clean", [False, True])
def test_a_leader_epoch_that_the_metadata_does_not_know_is_damage_of_that_batch(
    disk: SimulatedDisk, clean: bool
) -> None:
    active = segments(disk)[-1]
    disk.flip_bit(path_of(active), 12, 5)
    forget_note(disk)
    with pytest.raises(DamagedLog, match="position 0: leader epoch .* has not begun; the partition's is 2"):
        open_log(disk, recovery_point=COUNT, leader_epoch=2, clean=clean)


@pytest.mark.parametrize("position", range(len(b"0 3 0 0 1 12 2 24 ")))
def test_a_flipped_bit_in_the_file_of_epochs_is_not_held_against_the_batches(
    disk: SimulatedDisk, position: int
) -> None:
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    good = disk.read_bytes(path)
    for bit in range(8):
        disk.write_durably(path, good)
        disk.flip_bit(path, position, bit)
        log = open_log(disk, recovery_point=COUNT, leader_epoch=2)
        assert (log.log_end_offset, log.epochs.entries) == (COUNT, ((0, 0), (1, 12), (2, 24)))


@pytest.mark.parametrize("position", range(len(b"0 3 0 0 1 12 2 24 ")))
def test_after_a_clean_stop_too_a_wrong_file_of_epochs_is_made_anew(disk: SimulatedDisk, position: int) -> None:
    open_log(disk).close()
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    good = disk.read_bytes(path)
    for bit in range(8):
        disk.write_durably(path, good)
        disk.flip_bit(path, position, bit)
        log = open_log(disk, recovery_point=COUNT, clean=True, leader_epoch=2)
        assert log.epochs.entries == ((0, 0), (1, 12), (2, 24))
        assert log.read(ReadLimits(0, 10**6)).next_offset > 0


def test_a_note_that_is_older_than_the_file_of_epochs_does_not_cost_epochs() -> None:
    """A power cut may take the note back. Epochs that a compaction has left no batch of are in that file alone."""
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, files=disk, config=COMPACTED, now_ms=0)
    log.append([stored_batch(0)])
    log.flush()
    older = disk.read_bytes(f"{DIRECTORY}/{FLUSHED_OFFSET}")
    log.epochs.assign(1, 3)
    log.append([stored_batch(5, leader_epoch=2)])
    log.flush()
    log.append([stored_batch(6, leader_epoch=3)])
    disk.overwrite(f"{DIRECTORY}/{FLUSHED_OFFSET}", older)
    log = Log.open(DIRECTORY, files=disk, config=COMPACTED, now_ms=0, recovery_point=6)
    assert log.epochs.entries == ((0, 0), (1, 3), (2, 5), (3, 6))


def test_a_truncation_lowers_the_note_before_it_cuts(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    log.truncate_to(COUNT - 5)
    assert open_log(disk).log_end_offset == COUNT - 5
    log = open_log(disk)
    log.truncate_fully_and_start_at(COUNT + 5)
    assert open_log(disk).recovery.damage is None


def test_a_truncation_over_a_torn_note_promises_no_more_than_was_flushed() -> None:
    """Otherwise what a power cut takes below the cut would count as damage."""
    disk = SimulatedDisk()
    log = open_log(disk)
    disk.write_durably(f"{DIRECTORY}/{FLUSHED_OFFSET}", b"")
    log.append([stored_batch(offset) for offset in range(5)])
    log.truncate_to(4)
    note = read_note(disk, DIRECTORY)
    assert note is not None
    assert note.offset == log.flushed_offset == 0


def test_a_flipped_bit_in_the_note_takes_nothing_from_the_log(disk: SimulatedDisk) -> None:
    path = f"{DIRECTORY}/{FLUSHED_OFFSET}"
    good = disk.read_bytes(path)
    for bit in range(8 * len(good)):
        disk.overwrite(path, good)
        disk.flip_bit(path, bit // 8, bit % 8)
        assert open_log(disk, recovery_point=COUNT).log_end_offset == COUNT


def test_epochs_that_recovery_found_outlive_the_next_recovery(disk: SimulatedDisk) -> None:
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    disk.open(path, create=True).writev([b"0\n1\n0 0\n"])
    found = open_log(disk)
    # The second one looks at the last segment only.
    assert open_log(disk, recovery_point=found.flushed_offset).epochs.entries == ((0, 0), (1, 12), (2, 24))


@pytest.mark.parametrize("seed", range(12))
def test_batches_of_a_failed_append_do_not_come_back_after_a_power_cut(seed: int) -> None:
    disk = SimulatedDisk(seed)
    log = open_log(disk)
    log.append([stored_batch(0)])
    log.flush()
    disk.sync_dir("/data")
    disk.sync_dir("/")
    disk.write_short_at(disk.operations + 1, SIZE + 10)
    with pytest.raises(StorageError):
        log.append([stored_batch(1), stored_batch(2)])
    disk.power_cut()
    disk.reboot()
    assert open_log(disk, recovery_point=1).log_end_offset == 1


@pytest.mark.parametrize("seed", range(12))
def test_names_that_an_earlier_process_did_not_sync_are_synced_by_the_first_flush(seed: int) -> None:
    disk = SimulatedDisk(seed)
    disk.make_dirs("/data")
    disk.sync_dir("/")
    open_log(disk)
    log = open_log(disk)
    log.append([stored_batch(0)])
    log.flush()
    disk.power_cut()
    disk.reboot()
    assert open_log(disk, recovery_point=1).log_end_offset == 1


@pytest.mark.parametrize("is_flush_under_way", [False, True])
def test_a_log_that_was_never_flushed_does_not_begin_at_a_later_segment(is_flush_under_way: bool) -> None:
    """A power cut keeps names in any order: a log that begins later passes for a log that retention has shortened."""
    for seed in range(40):
        disk = SimulatedDisk(seed)
        disk.make_dirs("/data")
        disk.sync_dir("/")
        log = open_log(disk)
        disk.sync_dir("/data")
        if is_flush_under_way:
            log.flushes.begin()
        for offset in range(COUNT):
            log.append([stored_batch(offset)])
        assert log.segment_count > 1
        disk.power_cut()
        disk.reboot()
        assert open_log(disk).log_start_offset == 0


def test_a_log_whose_first_name_cannot_be_synced_goes_offline_at_its_first_roll() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)

    def fail_syncs_of_names(number: int, operation: str) -> None:
        if operation.endswith(f"sync directory {DIRECTORY}"):
            disk.fail_at(number)

    disk.on_operation = fail_syncs_of_names
    with pytest.raises(StorageError):
        log.append([stored_batch(offset) for offset in range(COUNT)])
    assert log.is_offline
    assert log.segment_count == 1


def test_recovery_does_not_believe_the_page_cache_after_a_failed_flush(disk: SimulatedDisk) -> None:
    """The bytes of a failed sync can be read, but no later sync writes them: recovery writes them again."""
    disk.sync_dir("/data")
    disk.sync_dir("/")
    log = open_log(disk, recovery_point=COUNT)
    log.append([stored_batch(COUNT, leader_epoch=2)])
    disk.fail_at(disk.operations + 1)
    with pytest.raises(StorageError):
        log.flush()
    assert open_log(disk, recovery_point=COUNT).flushed_offset == COUNT + 1
    disk.power_cut()
    disk.reboot()
    assert open_log(disk, recovery_point=COUNT + 1).log_end_offset == COUNT + 1


def test_an_epoch_that_was_cut_off_is_not_taken_from_a_checkpoint_that_still_has_it() -> None:
    """The leader of epoch 1 cut the log back to 0 and wrote there; the checkpoint says what was so before."""
    disk = SimulatedDisk()
    log = open_log(disk)
    log.append([stored_batch(0, leader_epoch=0)])
    log.close()
    log = open_log(disk, clean=True)
    log.truncate_to(0)
    log.append([stored_batch(0, leader_epoch=1)])
    log = open_log(disk)
    assert log.epochs.entries == ((1, 0),)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("suffix", [".log", ".log.swap", ".log.deleted", ".snapshot"])
@pytest.mark.parametrize("digits", ["9" * 20, "٠" * 20, "0" * 19 + "x", "0" * 19, "0" * 20 + "."])
def test_a_name_that_is_no_offset_names_nothing_of_the_log(
    disk: SimulatedDisk, digits: str, suffix: str, clean: bool
) -> None:
    open_log(disk).close()
    disk.open(f"{DIRECTORY}/{digits}{suffix}", create=True).writev([b"x" * 100])
    log = open_log(disk, recovery_point=COUNT, clean=clean)
    assert (log.log_start_offset, log.log_end_offset) == (0, COUNT)
    check_that_nothing_is_missing(log)
    assert len(log.producers) == 1


def test_after_a_recovery_only_the_active_segment_keeps_its_indexes_in_memory(disk: SimulatedDisk) -> None:
    """A log of terabytes may be checked whole, and its indexes would stay for good."""
    log = open_log(disk)
    assert log.recovery.segments_checked == len(segments(disk)) > 2
    for base_offset in segments(disk)[:-1]:
        disk.fail_reads_of(path_of(base_offset, ".index"))
        with pytest.raises(StorageError, match=".index"):
            log.read(ReadLimits(base_offset, 1))
    assert log.read(ReadLimits(segments(disk)[-1], 1)).size_bytes


@pytest.mark.parametrize("seed", range(60))
def test_a_segment_that_is_lost_does_not_pass_for_a_gap_because_the_topic_is_compacted_now(seed: int) -> None:
    disk = SimulatedDisk.with_directory("/data", seed)
    log = open_log(disk)
    log.append([stored_batch(0)])
    log.flush()
    for offset in range(1, COUNT):
        log.append([stored_batch(offset)])
    assert log.segment_count >= 3
    compacted = replace(CONFIG, cleanup_policy=("compact",))
    log.update_config(compacted)
    disk.power_cut()
    disk.reboot()
    log = Log.open(DIRECTORY, files=disk, config=compacted, now_ms=0, recovery_point=1)
    check_that_nothing_is_missing(log)


@pytest.mark.parametrize("seed", range(60))
def test_a_loss_after_a_topic_has_become_compacted_does_not_pass_for_a_gap(seed: int) -> None:
    """Nothing is noted at once; the next roll notes it, before a segment begins whose predecessor may be lost."""
    disk = SimulatedDisk.with_directory("/data", seed)
    log = open_log(disk)
    for offset in range(5):
        log.append([stored_batch(offset)])
    log.flush()
    flushed = log.flushed_offset
    log.append([stored_batch(flushed)])
    assert log.segment_count == 1
    compacted = replace(CONFIG, cleanup_policy=("compact",))
    log.update_config(compacted)
    for offset in range(flushed + 1, COUNT):
        log.append([stored_batch(offset)])
    assert log.segment_count >= 3
    disk.power_cut()
    disk.reboot()
    log = Log.open(DIRECTORY, files=disk, config=compacted, now_ms=0, recovery_point=flushed)
    assert log.log_end_offset >= flushed
    check_that_nothing_is_missing(log)


@pytest.mark.parametrize("seed", range(60))
def test_a_segment_that_is_lost_does_not_pass_for_a_gap_where_gaps_are_legal(seed: int) -> None:
    """Gaps were legal up to an offset, and the log was cut back below it and filled again, but not flushed."""
    disk = SimulatedDisk(seed)
    log = Log.open(DIRECTORY, files=disk, config=COMPACTED, now_ms=0)
    for offset in range(COUNT):
        log.append([stored_batch(offset)])
    log.append([stored_batch(COUNT + 10)])
    log.flush()
    log.update_config(CONFIG)
    log.truncate_to(0)
    for offset in range(COUNT):
        log.append([stored_batch(offset)])
    assert log.segment_count >= 3
    disk.power_cut()
    disk.reboot()
    check_that_nothing_is_missing(open_log(disk))


@pytest.mark.parametrize("are_later_lost", [False, True], ids=["later segments are left", "later segments are lost"])
def test_index_files_of_a_rolled_segment_that_is_active_again_go(are_later_lost: bool) -> None:
    """A power cut may take a rolled segment's batches and leave its index files, which were written at once."""
    disk = SimulatedDisk()
    disk.make_dirs("/data")
    disk.sync_dir("/")
    log = open_log(disk)
    for offset in range(0, COUNT, 2):
        log.append([stored_batch(offset, producer_id=4, base_sequence=offset // 2, is_transactional=True)])
        log.append([stored_marker(offset + 1, producer_id=4, is_commit=False)])
    bases = segments(disk)
    lost = bases[1]
    log.close()
    assert disk.exists(path_of(lost, ".txnindex"))
    disk.open(path_of(lost)).truncate(0)
    for base in bases[2:] if are_later_lost else []:
        disk.unlink(path_of(base))
    forget_note(disk)

    log = open_log(disk, recovery_point=lost)
    assert log.log_end_offset == lost
    assert [name for name in disk.list_dir(DIRECTORY) if name.startswith(f"{lost:020d}") and "index" in name] == []
    aborted = log.aborted_transactions(0, COUNT)
    assert [transaction.last_offset for transaction in aborted] == list(range(1, lost, 2))
    log.close()
    disk.power_cut()
    disk.reboot()
    assert open_log(disk, recovery_point=lost, clean=True).aborted_transactions(0, COUNT) == aborted


def check_that_nothing_is_missing(log: Log) -> None:
    offset = 0
    while offset < log.log_end_offset:
        result = log.read(ReadLimits(offset, 1000))
        assert result.size_bytes, "nothing is missing"
        assert result.first_offset == offset, "nothing is missing"
        offset = result.next_offset
