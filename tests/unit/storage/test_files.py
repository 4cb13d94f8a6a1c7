"""The operating system's files: what is promised of writes, names and the number of descriptors."""

import ctypes
import errno
import os
from pathlib import Path

import pytest

from tailrace.model.errors import StorageError
from tailrace.storage import OsFiles
from tailrace.storage.checkpoints import MetaProperties, replace_file, write_meta_properties
from tailrace.storage.file_system import append_all
from tailrace.storage.files import _is_fuse_mount


def test_only_the_owner_may_read_a_file_with_a_secret(tmp_path: Path) -> None:
    """Even where an earlier release, or a write that was broken off, left a file that every user may read."""
    for name in ("meta.properties", "meta.properties.tmp"):
        (tmp_path / name).touch(0o644)
    write_meta_properties(OsFiles(), str(tmp_path), MetaProperties(cluster_id="Xy-1", node_id=3))
    assert (tmp_path / "meta.properties").stat().st_mode & 0o777 == 0o600


def test_a_write_appends_and_more_buffers_than_one_call_takes_arrive_in_order(tmp_path: Path) -> None:
    file = OsFiles().open(f"{tmp_path}/a", create=True)
    buffers = [b"%05d" % number for number in range(3000)]
    assert file.writev([b"start", *buffers]) == 5 + 5 * 3000
    assert file.pread(10**6, 0) == b"start" + b"".join(buffers)
    assert file.pread(5, 5 + 5 * 2999) == b"02999"
    assert file.pread(100, 10**6) == b""
    file.truncate(5)
    assert file.writev([memoryview(b"more")]) == 4
    assert file.pread(100, 0) == b"startmore"
    assert file.size_bytes() == 9
    file.close()
    file.close()


def test_descriptors_are_bounded_and_files_stay_usable(tmp_path: Path) -> None:
    files = OsFiles(max_open_files=4)
    opened = [files.open(f"{tmp_path}/{number}", create=True) for number in range(20)]
    for _ in range(2):
        for number, file in enumerate(opened):
            file.writev([b"%02d" % number])
            assert files.open_files <= 4
    for number, file in enumerate(opened):
        assert file.pread(10, 0) == b"%02d" % number * 2
        file.close()
    assert files.open_files == 0


def test_a_pinned_file_is_not_closed_under_a_sync(tmp_path: Path) -> None:
    files = OsFiles(max_open_files=2)
    pinned = files.open(f"{tmp_path}/pinned", create=True)
    pinned.pin()
    for number in range(10):
        files.open(f"{tmp_path}/{number}", create=True)
    pinned.close()
    files.unlink(f"{tmp_path}/pinned")
    pinned.sync()  # needs the descriptor: the name is gone
    pinned.unpin()
    with pytest.raises(StorageError, match="pinned: No such file"):
        pinned.sync()


def test_create_makes_a_new_inode_and_readers_of_the_old_one_are_not_disturbed(tmp_path: Path) -> None:
    files = OsFiles()
    old = files.open(f"{tmp_path}/a", create=True)
    old.writev([b"old"])
    new = files.open(f"{tmp_path}/a", create=True)
    new.writev([b"new"])
    assert old.pread(3, 0) == b"old"
    old.close()
    new.close()


def test_lent_bytes_stay_for_as_long_as_a_view_of_them_exists(tmp_path: Path) -> None:
    file = OsFiles().open(f"{tmp_path}/a", create=True)
    file.writev([b"x" * 50_000, b"y" * 50_000])
    first = file.lend(40_000, 0)
    assert file.lend(40_000, 60_000) == b"y" * 40_000
    assert first == b"x" * 40_000
    assert file.lend(40_000, 90_000) == b"y" * 10_000, "fewer at the end of the file"
    assert file.lend(10, 100_000) == b""
    with pytest.raises(TypeError):
        first[0] = 0  # type: ignore[index]
    file.close()


def test_failures_name_the_path_and_the_systems_words(tmp_path: Path) -> None:
    files = OsFiles()
    missing = f"{tmp_path}/missing"
    with pytest.raises(StorageError, match=f"cannot open {missing}: No such file or directory"):
        files.open(missing).pread(1, 0)
    with pytest.raises(StorageError, match=f"cannot open {missing}: No such file or directory"):
        files.open(missing).lend(1, 0)
    for call in (files.list_dir, files.unlink, files.read_bytes, files.size_of, files.sync_dir, files.remove_tree):
        with pytest.raises(StorageError, match=missing):
            call(missing)
    with pytest.raises(StorageError, match="a/b: No such file"):
        files.open(f"{tmp_path}/a/b", create=True)
    assert not files.exists(missing)
    assert 0 < files.free_bytes(str(tmp_path)) <= files.total_bytes(str(tmp_path))


def test_a_directory_is_removed_with_all_that_is_in_it(tmp_path: Path) -> None:
    """Files outside stay, also if a symbolic link points to them."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    log = tmp_path / "orders-0"
    (log / "snapshots" / "empty").mkdir(parents=True)
    (log / "00.log").write_text("x")
    (log / "snapshots" / "1.snapshot").write_text("x")
    (log / "there").symlink_to(outside)
    (log / "gone").symlink_to(tmp_path / "missing")
    OsFiles().remove_tree(str(log))
    assert not log.exists()
    assert (outside / "kept").read_text() == "x"
    link = tmp_path / "link"
    link.symlink_to(outside)
    with pytest.raises(StorageError, match="remove directory"):
        OsFiles().remove_tree(str(link))
    assert (outside / "kept").exists()


def test_a_full_disk_is_an_error_with_the_path() -> None:
    full = OsFiles().open("/dev/full")
    with pytest.raises(StorageError, match="/dev/full: No space left on device"):
        append_all(full, b"x")
    full.close()


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    files = OsFiles()
    path = f"{tmp_path}/checkpoint"
    replace_file(files, path, b"one")
    replace_file(files, path, b"x" * 100_000)
    assert files.read_bytes(path) == b"x" * 100_000
    assert files.list_dir(str(tmp_path)) == ["checkpoint"]
    assert files.open_files == 0


def test_a_directory_of_another_user_needs_no_sync(tmp_path: Path) -> None:
    """A node may live below a directory that it can pass through and not list."""
    user = os.geteuid()
    tmp_path.chmod(0o311)
    if user == 0:
        os.seteuid(65534)  # root may list everything
    try:
        OsFiles().sync_dir(str(tmp_path))
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EIO])
def test_a_system_that_does_not_offer_to_sync_a_whole_disk_has_no_failed_disk(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        @staticmethod
        def syncfs(descriptor: int) -> int:
            ctypes.set_errno(number)
            return -1

    monkeypatch.setattr("tailrace.storage.files._c_library", Library)
    if number == errno.EIO:
        with pytest.raises(StorageError, match="cannot sync the disk of"):
            OsFiles().sync_all(str(tmp_path))
    else:
        assert not OsFiles().sync_all(str(tmp_path))


@pytest.mark.parametrize(
    ("line", "is_fuse"),
    [
        ("36 35 0:45 / /mnt/a rw,noatime shared:1 - fuse.sshfs user@host:/ rw,user_id=0", True),
        ("36 35 0:45 / /mnt/a rw,noatime - fuse none rw", True),
        ("36 35 0:45 / /mnt/fuse rw,noatime - ext4 /dev/sda1 rw", False),
        ("36 35 0:46 / /mnt/a rw,noatime - fuse none rw", False),
    ],
)
def test_a_disk_behind_a_process_is_recognised(line: str, is_fuse: bool) -> None:
    assert _is_fuse_mount(line, "0:45") == is_fuse
