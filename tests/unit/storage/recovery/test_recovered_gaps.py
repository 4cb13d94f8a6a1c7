"""Offsets that are missing from a log which is opened: right where a compaction may have removed them."""

from dataclasses import replace

import pytest

from tailrace.model.errors import CorruptRecords
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import ReadLimits, checkpoints
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch
from unit.storage.recovery.recovered_logs import (
    COMPACTED,
    CONFIG,
    COUNT,
    DIRECTORY,
    assert_whole,
    fill,
    forget_note,
    log_with_gaps,
    open_log,
)


def test_recovery_accepts_gaps_of_offsets_in_a_compacted_log_only() -> None:
    disk = log_with_gaps()
    disk.unlink(f"{DIRECTORY}/{checkpoints.GAP_BOUND}")
    assert open_log(disk, COMPACTED, recovery_point=10).log_end_offset == 10
    forget_note(disk)
    assert open_log(disk).log_end_offset == 1


def test_gaps_of_a_log_that_was_compacted_once_stay_right_for_good() -> None:
    disk = log_with_gaps()
    log = open_log(disk, recovery_point=10)
    assert log.log_end_offset == 10
    assert log.read(ReadLimits(1, 1)).first_offset == 5


def test_a_gap_above_the_gap_bound_is_damage_also_in_a_compacted_log() -> None:
    disk = log_with_gaps()
    checkpoints.write_gap_bound(disk, DIRECTORY, 5)
    with pytest.raises(CorruptRecords, match="offset 9 follows offset 5"):
        open_log(disk, COMPACTED, recovery_point=10)


@pytest.mark.parametrize("config", [CONFIG, COMPACTED], ids=["delete", "compact"])
def test_a_bound_of_gaps_that_cannot_be_read_costs_an_operator_no_record(config: TopicConfig) -> None:
    """That there is such a file says that offsets may be missing, whatever the settings say today."""
    disk = log_with_gaps()
    disk.sync_dir("/")  # the name of /data
    disk.flip_bit(f"{DIRECTORY}/{checkpoints.GAP_BOUND}", 0)
    with pytest.raises(CorruptRecords, match=checkpoints.GAP_BOUND):
        open_log(disk, config)
    log = open_log(disk, config, cuts_damage=True)
    assert (log.log_end_offset, log.recovery.cut_reason, log.recovery.lost_acknowledged) == (10, "", False)
    log.close(clean=False)
    disk.power_cut()
    disk.reboot()
    again = open_log(disk, config)
    assert again.log_end_offset == 10
    assert [again.read(ReadLimits(offset, 1)).first_offset for offset in (0, 1, 6)] == [0, 5, 9]


def test_above_the_flushed_end_no_gap_is_legal_if_their_bound_cannot_be_read() -> None:
    """The gap would be a part of a torn write that is lost."""
    disk = log_with_gaps()
    log = open_log(disk, COMPACTED)
    log.append([stored_batch(10), stored_batch(15)])
    disk.flip_bit(f"{DIRECTORY}/{checkpoints.GAP_BOUND}", 0)
    again = open_log(disk, COMPACTED, cuts_damage=True)
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


@pytest.mark.parametrize("seed", range(60))
def test_a_segment_that_is_lost_does_not_pass_for_a_gap_because_the_topic_is_compacted_now(seed: int) -> None:
    disk = SimulatedDisk.with_directory("/data", seed)
    log = open_log(disk)
    log.append([stored_batch(0)])
    log.flush()
    fill(log)
    assert log.segment_count >= 3
    compacted = replace(CONFIG, cleanup_policy=("compact",))
    log.update_config(compacted)
    disk.power_cut()
    disk.reboot()
    log = open_log(disk, compacted, recovery_point=1)
    assert_whole(log)


@pytest.mark.parametrize("seed", range(60))
def test_a_segment_that_is_lost_does_not_pass_for_a_gap_where_gaps_are_legal(seed: int) -> None:
    """Gaps were legal up to an offset, and the log was cut back below it and filled again, but not flushed."""
    disk = SimulatedDisk(seed)
    log = open_log(disk, COMPACTED)
    fill(log)
    log.append([stored_batch(COUNT + 10)])
    log.flush()
    log.update_config(CONFIG)
    log.truncate_to(0)
    fill(log)
    assert log.segment_count >= 3
    disk.power_cut()
    disk.reboot()
    assert_whole(open_log(disk))


@pytest.mark.parametrize("seed", range(60))
def test_a_loss_after_a_topic_has_become_compacted_does_not_pass_for_a_gap(seed: int) -> None:
    """Nothing is noted at once; the next roll notes it, before a segment begins whose predecessor may be lost."""
    disk = SimulatedDisk.with_directory("/data", seed)
    log = open_log(disk)
    fill(log, 5)
    log.flush()
    flushed = log.flushed_offset
    log.append([stored_batch(flushed)])
    assert log.segment_count == 1
    compacted = replace(CONFIG, cleanup_policy=("compact",))
    log.update_config(compacted)
    fill(log)
    assert log.segment_count >= 3
    disk.power_cut()
    disk.reboot()
    log = open_log(disk, compacted, recovery_point=flushed)
    assert log.log_end_offset >= flushed
    assert_whole(log)
