"""The simulated disk keeps synced data, and may lose the rest."""

import pytest

from tailrace.model.errors import StorageError
from tailrace.testing.disk import PowerCut, SimulatedDisk


def after_a_cut(seed: int, *, sync: bool, sync_dir: bool, lying_sync: bool = False) -> bytes | None:
    """The rest of a file of 2000 bytes, None if its name is gone."""
    disk = SimulatedDisk(seed, lying_sync=lying_sync)
    file = disk.open("/a", create=True)
    file.writev([b"x" * 1000, b"y" * 1000])
    if sync:
        file.sync()
    if sync_dir:
        disk.sync_dir("/")
    disk.power_cut()
    disk.reboot()
    return disk.read_bytes("/a") if disk.exists("/a") else None


WHOLE = b"x" * 1000 + b"y" * 1000


def test_a_file_that_was_synced_with_its_name_is_never_lost() -> None:
    assert {after_a_cut(seed, sync=True, sync_dir=True) for seed in range(100)} == {WHOLE}


def test_a_name_that_was_not_synced_may_be_lost() -> None:
    assert {after_a_cut(seed, sync=True, sync_dir=False) for seed in range(100)} == {WHOLE, None}


def test_bytes_that_were_not_synced_may_be_lost_torn_or_kept() -> None:
    left = {after_a_cut(seed, sync=False, sync_dir=True) for seed in range(300)}
    assert {b"", WHOLE} <= left
    assert any(content and WHOLE.startswith(content) and content != WHOLE for content in left)
    assert any(content and b"\0" in content and content.strip(b"\0") for content in left), "some sectors only"


def test_a_lying_sync_keeps_nothing_safe() -> None:
    assert None in {after_a_cut(seed, sync=True, sync_dir=True, lying_sync=True) for seed in range(50)}


def test_the_same_seed_loses_the_same() -> None:
    for seed in range(20):
        assert after_a_cut(seed, sync=False, sync_dir=False) == after_a_cut(seed, sync=False, sync_dir=False)


def test_a_rename_happens_or_does_not() -> None:
    seen = set()
    for seed in range(60):
        disk = SimulatedDisk(seed)
        for name, content in (("/old", b"old"), ("/new", b"new")):
            file = disk.open(name, create=True)
            file.writev([content])
            file.sync()
        disk.sync_dir("/")
        disk.rename("/old", "/new")
        disk.power_cut()
        disk.reboot()
        seen.add((tuple(disk.list_dir("/")), disk.read_bytes("/new")))
    assert seen == {(("new", "old"), b"new"), (("new",), b"old")}


def test_the_power_goes_before_or_after_the_operation_and_nothing_works_until_the_reboot() -> None:
    for after in (False, True):
        disk = SimulatedDisk()
        file = disk.open("/a", create=True)
        file.writev([b"1"])
        disk.sync_dir("/")
        disk.cut_power_at(disk.operations + 1, after=after)
        with pytest.raises(PowerCut):
            file.sync()
        with pytest.raises(PowerCut):
            disk.exists("/a")
        disk.reboot()
        with pytest.raises(PowerCut, match="opened before"):
            file.pread(1, 0)
        if after:
            assert disk.read_bytes("/a") == b"1"


def test_bytes_of_a_failed_sync_are_seen_but_never_become_durable_unless_they_are_written_again() -> None:
    for again in (False, True):
        disk = SimulatedDisk()
        file = disk.open("/a", create=True)
        disk.sync_dir("/")
        file.writev([b"lost"])
        disk.fail_at(disk.operations + 1)
        with pytest.raises(StorageError, match="cannot sync /a: Input/output error"):
            file.sync()
        if again:
            file.rewrite(0)
        file.sync()
        assert file.pread(4, 0) == b"lost"
        disk.power_cut()
        disk.reboot()
        assert disk.read_bytes("/a") == (b"lost" if again else b"")


def test_a_full_disk_takes_a_part_and_then_nothing() -> None:
    disk = SimulatedDisk()
    file = disk.open("/a", create=True)
    disk.free_space = 3
    assert file.writev([b"12345"]) == 3
    with pytest.raises(StorageError, match="No space left"):
        file.writev([b"4"])
    file.truncate(1)
    assert file.writev([b"45"]) == 2


def test_faults_name_what_is_missing() -> None:
    disk = SimulatedDisk()
    for call in (disk.list_dir, disk.unlink, disk.read_bytes, disk.size_of, disk.sync_dir, disk.remove_tree):
        with pytest.raises(StorageError, match="/missing"):
            call("/missing")
    with pytest.raises(StorageError, match="/missing"):
        disk.open("/missing").pread(1, 0)


def test_damage_and_failing_reads_can_be_arranged() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("/d/e")
    file = disk.open("/d/e/a", create=True)
    file.writev([b"\x00"])
    disk.flip_bit("/d/e/a", 0, 3)
    assert disk.read_bytes("/d/e/a") == b"\x08"
    disk.fail_reads_of("/d/e/a")
    with pytest.raises(StorageError):
        file.pread(1, 0)
    disk.remove_tree("/d/e")
    assert not disk.exists("/d/e/a")
