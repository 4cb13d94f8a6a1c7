"""Checkpoints of coordinators on a real partition and a simulated disk: when they are written, and when they go."""

import errno
import logging

import pytest

from tailrace.model.errors import StorageError
from tailrace.protocol.messages.groups import FindCoordinatorRequest
from tailrace.protocol.records.batch import read_header
from tailrace.server.coordination.checkpoint_keeper import _Making
from tailrace.storage import ReadLimits
from tailrace.storage.log_checkpoint import LogCheckpoint
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.checkpoint_path import OFFSETS, RETRY_MS, CheckpointPath
from testkit.coordinators.group_path import GroupPath

DIRECTORY = f"/data/{OFFSETS}"


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk(seed=1)
    disk.make_dirs("/data")
    disk.sync_dir("/")
    return disk


@pytest.fixture
def path(disk: SimulatedDisk) -> CheckpointPath:
    return CheckpointPath(disk)


def _checkpoints(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.list_dir(DIRECTORY) if ".checkpoint" in name]


def _restarted(disk: SimulatedDisk, *, leader_epoch: int = 0) -> CheckpointPath:
    disk.power_cut()
    disk.reboot()
    return CheckpointPath(disk, start=2, leader_epoch=leader_epoch)


def test_a_load_reads_the_checkpoint_and_the_log_behind_it(disk: SimulatedDisk, path: CheckpointPath) -> None:
    path.commit("g", 1, 2)
    path.commit("h", 7, None)
    assert path.look() == 4
    path.commit("h", 8)
    assert path.load() == ({"g": [2], "h": [8]}, 4)
    assert _checkpoints(disk) == ["00000000000000000004-0000000000.checkpoint"]


def test_a_newer_checkpoint_takes_the_place_of_the_older_one_when_enough_was_appended(disk: SimulatedDisk) -> None:
    path = CheckpointPath(disk, min_log_bytes=1_000)
    path.commit("g", 1, metadata="m" * 500)
    assert path.look() is None
    path.commit("g", 2, metadata="m" * 500)
    assert path.look() == 2
    path.commit("g", 3, metadata="m" * 500)
    assert path.look() == 2
    path.commit("g", 4, metadata="m" * 500)
    assert path.look() == 4
    assert len(_checkpoints(disk)) == 1
    assert path.load() == ({"g": [4]}, 4)
    assert path.keeper.counts.written == 2


def test_a_large_state_is_not_written_again_for_a_few_changes(disk: SimulatedDisk) -> None:
    path = CheckpointPath(disk, min_log_bytes=1_000)
    for number in range(40):
        path.commit(f"g{number}", 1, metadata="m" * 100)
    assert path.look() == 40
    large = path.checkpoint.size_bytes
    path.commit("g0", *range(10), metadata="m" * 100)
    assert path.look() == 40, "a thousand bytes of several thousand"
    path.commit("g0", *range(20), metadata="m" * 100)
    assert path.look() == 70
    assert path.checkpoint.size_bytes == pytest.approx(large, rel=0.1)


def test_a_checkpoint_survives_a_power_cut_and_holds_no_more_than_the_log(disk: SimulatedDisk) -> None:
    path = CheckpointPath(disk)
    path.commit("g", 1)
    assert path.look() == 1
    again = _restarted(disk)
    assert again.load() == ({"g": [1]}, 1)


@pytest.mark.parametrize("position", range(0, 330, 7))
def test_a_flipped_bit_costs_load_time_only(
    disk: SimulatedDisk, path: CheckpointPath, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    path.commit("g", 1, 2)
    path.look()
    disk.flip_bit(path.path_of_checkpoint, position % disk.size_of(path.path_of_checkpoint), position % 8)
    with caplog.at_level(logging.WARNING, logger="tailrace.server"):
        assert path.load() == ({"g": [2]}, 0)
    assert "event=checkpoint-dropped partition=__consumer_offsets-0" in caplog.text
    assert _checkpoints(disk) == [], "and it does not mislead the next load"


def test_a_cut_checkpoint_costs_load_time_only(disk: SimulatedDisk, path: CheckpointPath) -> None:
    path.commit("g", 1, 2)
    path.look()
    name = path.path_of_checkpoint
    disk.open(name).truncate(disk.size_of(name) - 70)
    assert path.load() == ({"g": [2]}, 0)
    assert _checkpoints(disk) == []


def test_a_damaged_checkpoint_is_not_the_base_of_the_next_one(disk: SimulatedDisk, path: CheckpointPath) -> None:
    path.commit("g", 1)
    path.look()
    disk.flip_bit(path.path_of_checkpoint, 150)
    path.commit("h", 2, 2)
    assert path.look() == 3
    assert path.load() == ({"g": [1], "h": [2]}, 3)


@pytest.mark.parametrize("name", ["00000000000000000009-0000000000", "00000000000000000001-0000000007"])
def test_a_checkpoint_that_the_log_contradicts_is_removed_when_it_is_opened(
    disk: SimulatedDisk, path: CheckpointPath, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path.commit("g", 1, 2)
    path.look()
    disk.rename(path.path_of_checkpoint, f"{DIRECTORY}/{name}.checkpoint")
    disk.sync_dir(DIRECTORY)
    with caplog.at_level(logging.WARNING, logger="tailrace.server"):
        again = _restarted(disk)
    assert "event=checkpoint-dropped" in caplog.text
    assert _checkpoints(disk) == []
    assert again.load() == ({"g": [2]}, 0)


def test_a_checkpoint_of_another_partition_is_not_read(disk: SimulatedDisk, path: CheckpointPath) -> None:
    other = path.node.create(OFFSETS.topic, partition=1, config=path.partition.config)
    path.commit("g", 1, 2)
    path.look()
    name = path.path_of_checkpoint.removeprefix(f"{DIRECTORY}/")
    disk.write_durably(f"{other.log.directory}/{name}", disk.read_bytes(path.path_of_checkpoint))
    other.log.checkpoint = LogCheckpoint.open(other.log.directory, files=disk)
    path.partition = other
    assert path.load() == ({}, 0)
    assert other.log.checkpoint.id is None


def test_a_deleted_offset_stays_deleted_however_often_the_log_is_compacted(path: CheckpointPath) -> None:
    path.commit("g", 1)
    path.commit("h", 1)
    assert path.look() == 2
    path.commit("g", None)
    path.commit("h", *range(2, 20))
    path.compact(times=3)
    assert path.load() == ({"h": [19]}, 2)
    held_back = path.partition.log.size_bytes
    path.look()
    path.compact(times=3)
    assert path.load()[0] == {"h": [19]}
    assert path.partition.log.size_bytes < held_back / 2, "a newer checkpoint lets the compaction go on"


def test_a_cut_below_its_end_takes_a_checkpoint_along(disk: SimulatedDisk, path: CheckpointPath) -> None:
    path.commit("g", 1, 2, 3)
    assert path.look() == 3
    path.partition.log.truncate_to(3)
    assert path.end_of_checkpoint == 3
    path.partition.log.truncate_to(2)
    assert path.end_of_checkpoint is None
    assert _checkpoints(disk) == []


def test_a_cut_while_a_checkpoint_is_made_voids_it(disk: SimulatedDisk, path: CheckpointPath) -> None:
    path.commit("g", 1, 2, 3)
    draft = path.checkpoint.begin(3)
    path.partition.log.truncate_to(2)
    assert draft.is_void
    path.checkpoint.abandon()


def test_a_log_that_another_program_has_compacted_further_does_without(
    disk: SimulatedDisk, path: CheckpointPath
) -> None:
    path.commit("g", *range(20))
    path.look()
    bound = path.partition.log.compactions.first_dirty_offset
    path.commit("g", *range(20))
    path.partition.log.checkpoint = None  # as a release that knows of no checkpoint
    path.compact()
    assert path.partition.log.compactions.first_dirty_offset > 20 > bound
    path.node.table.checkpoints.write_cleaner_offsets()
    path.clock.advance(0)
    again = _restarted(disk)
    assert _checkpoints(disk) == []
    assert again.load() == ({"g": [19]}, 0)


def test_a_full_disk_stops_nothing_and_is_tried_again(
    disk: SimulatedDisk, path: CheckpointPath, caplog: pytest.LogCaptureFixture
) -> None:
    path.commit("g", 1)
    assert path.look() == 1
    path.commit("g", 2, 2)
    room, disk.free_space = disk.free_space, 10
    with caplog.at_level(logging.WARNING, logger="tailrace.server"):
        assert path.look() is None, "it would hold compactions back, which could make room"
    assert "event=checkpoint-failed partition=__consumer_offsets-0" in caplog.text
    assert _checkpoints(disk) == []
    disk.free_space = room
    path.commit("g", 3)
    assert path.load() == ({"g": [3]}, 0)
    assert path.look() is None, "not at once"
    path.clock.advance(RETRY_MS)
    assert path.look() == 4
    assert path.keeper.counts == (2, 1)


def test_a_failed_sync_of_a_checkpoint_is_no_failure_of_the_log_directory(
    disk: SimulatedDisk, path: CheckpointPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.commit("g", 1)
    rename = disk.rename

    def fail(old: str, new: str) -> None:
        if new.endswith(".checkpoint"):
            raise StorageError(f"cannot rename {old}", errno.EIO)
        rename(old, new)

    monkeypatch.setattr(disk, "rename", fail)
    assert path.look() is None
    assert path.keeper.counts.failed == 1
    path.commit("g", 2)
    assert path.load() == ({"g": [2]}, 0)
    assert _checkpoints(disk) == []


def test_a_checkpoint_whose_directory_is_not_synced_is_removed(
    disk: SimulatedDisk, path: CheckpointPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has its name, and the keeper has given it up: compactions would go beyond it."""
    rename, sync_dir = disk.rename, disk.sync_dir
    renamed: list[str] = []

    def noted(source: str, target: str) -> None:
        rename(source, target)
        if target.endswith(".checkpoint"):
            renamed.append(target)

    def failing(directory: str) -> None:
        if renamed and directory == DIRECTORY:
            raise StorageError("the directory cannot be synced", errno.EIO)
        sync_dir(directory)

    monkeypatch.setattr(disk, "rename", noted)
    monkeypatch.setattr(disk, "sync_dir", failing)
    path.commit("g", *range(10))
    assert path.look() is None
    assert renamed
    assert _checkpoints(disk) == []


def test_a_high_watermark_that_rises_makes_a_checkpoint_due(
    path: CheckpointPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are there at a look, and committed only later: nothing is appended any more."""
    with monkeypatch.context() as patched:
        patched.setattr(type(path.partition), "high_watermark", 0)
        path.commit("g", *range(10))
        assert path.look() is None
    assert path.look() == 10


def test_a_compaction_waits_for_a_checkpoint_that_reads_the_log(disk: SimulatedDisk) -> None:
    """A tombstone that is removed behind a value which was read would bring the value back."""
    path = CheckpointPath(disk, min_log_bytes=1 << 40)
    path.commit("g", 1, None)
    making = _Making(path.partition, path.checkpoint, path.clock)
    next(making.steps())
    assert path.checkpoint.compaction_bound == path.partition.log.log_start_offset
    making.give_up()
    assert path.checkpoint.compaction_bound > path.partition.log.log_end_offset


def test_a_load_comes_to_its_end_if_the_log_ends_in_a_gap(disk: SimulatedDisk, path: CheckpointPath) -> None:
    """A compaction has left offsets without a batch, and then the log was cut among such offsets."""
    path.commit("g", *range(30))
    path.keeper.stop()
    path.compact()
    partition, cut = path.partition, 8
    (first,) = partition.log.read(ReadLimits(1, 1)).records
    assert read_header(first).base_offset > cut, "the offsets around the cut are gone"
    path.node.create(OFFSETS.topic, config=partition.config, leader=2, leader_epoch=1)
    partition.following.truncate_to(cut)
    assert path.load() == ({}, 0)


def test_leftovers_are_removed_when_the_log_is_opened(disk: SimulatedDisk, path: CheckpointPath) -> None:
    path.commit("g", 1, 2)
    path.look()
    for name in ("00000000000000000001-0000000000.checkpoint", "00000000000000000002-0000000000.checkpoint.part"):
        disk.write_durably(f"{DIRECTORY}/{name}", b"torn")
    disk.sync_dir(DIRECTORY)
    again = _restarted(disk)
    assert _checkpoints(disk) == ["00000000000000000002-0000000000.checkpoint"]
    assert again.load() == ({"g": [2]}, 2)


def test_a_broker_has_checkpoints_of_its_coordinators(disk: SimulatedDisk, caplog: pytest.LogCaptureFixture) -> None:
    node = GroupPath("/data", files=disk)
    node.create_topics("orders")
    assert node.find_coordinator("g") == 0
    assert node.send(FindCoordinatorRequest(key_type=1, coordinator_keys=("t",)), 4).response.coordinators
    checkpoints = node.broker.coordination.checkpoints
    checkpoints.start()
    text = "m" * 4_000
    for number in range(1_200):
        node.commit("g", "orders", number, metadata=text)
    node.clock.advance(60_000)
    assert checkpoints.counts == (1, 0)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="tailrace.server"):
        again = GroupPath("/data", files=disk, start=2)
        assert again.find_coordinator("g") == 0
    (loaded,) = (line for line in caplog.messages if "event=coordinator-loaded" in line and "groups=1" in line)
    assert int(loaded.split("from_offset=")[1].split()[0]) > 1_000
    assert again.committed("g", "orders") == 1_199
