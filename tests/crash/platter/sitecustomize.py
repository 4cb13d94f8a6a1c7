"""Runs first in a node that is to lose power: keeps, beside its data, a copy of what it has synced and of nothing else.

Python imports a module of this name before all others. PLATTER_OF names the directory that is watched, PLATTER where
the copy is: `tree` looks as the data would after a power cut, `inodes` has the same files by their inode numbers. The
bytes of a file get there with `fdatasync` or `fsync` of it, a name with `fsync` of its directory. PLATTER_LIES=1 makes
both do nothing: what a checker does not find out then, it would never find out.

The rest of a power cut is `crash.power`: it kills the nodes and puts the copies in the place of their data.
"""

import os
import shutil
import threading
from pathlib import Path

COPY_BYTES = 1 << 20


class Platter:
    """The copy. Everything is called by the functions of `os` that the node calls."""

    def __init__(self, data: Path, place: Path) -> None:
        self._data = str(data)
        self._tree = place / "tree"
        self._inodes = place / "inodes"
        self._tree.mkdir(parents=True, exist_ok=True)
        self._inodes.mkdir(exist_ok=True)
        self._same_bytes: dict[int, int] = {}
        """Up to where the copy of a file is known to have its bytes."""
        self._lock = threading.Lock()

    def created(self, descriptor: int) -> None:
        """A new file may have the inode number of a file that is gone."""
        with self._lock:
            number = os.fstat(descriptor).st_ino
            self._same_bytes[number] = 0
            (self._inodes / str(number)).unlink(missing_ok=True)

    def truncated(self, descriptor: int, size_bytes: int) -> None:
        with self._lock:
            number = os.fstat(descriptor).st_ino
            self._same_bytes[number] = min(size_bytes, self._same_bytes.get(number, 0))

    def synced(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not path.startswith(self._data):
            return
        with self._lock:
            if os.path.isdir(path):
                self._keep_names(path)
            else:
                self._keep_bytes(descriptor)

    def _keep_bytes(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        position = self._same_bytes.get(status.st_ino, 0)
        source = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
        copy = os.open(self._inodes / str(status.st_ino), os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            while position < status.st_size:
                content = os.pread(source, min(COPY_BYTES, status.st_size - position), position)
                if not content:
                    break
                position += os.pwrite(copy, content, position)
            truncate(copy, position)
        finally:
            os.close(source)
            os.close(copy)
        self._same_bytes[status.st_ino] = position

    def _keep_names(self, path: str) -> None:
        here = self._tree / os.path.relpath(path, self._data)
        here.mkdir(parents=True, exist_ok=True)
        there = {entry.name: entry for entry in os.scandir(path)}
        for name, entry in there.items():
            if entry.is_dir(follow_symlinks=False):
                (here / name).mkdir(exist_ok=True)
            else:
                self._keep_name(here / name, entry.inode())
        for name in {*os.listdir(here)} - there.keys():
            gone = here / name
            shutil.rmtree(gone) if gone.is_dir() else gone.unlink()

    def _keep_name(self, path: Path, number: int) -> None:
        copy = self._inodes / str(number)
        copy.touch()  # a name without bytes, if they were never synced
        if not path.exists() or not path.samefile(copy):
            # A name that was kept must never be away: the node may be killed between any two calls.
            new = self._inodes / f"{number}.new"
            new.unlink(missing_ok=True)
            os.link(copy, new)
            os.rename(new, path)


truncate = os.ftruncate


def watch(platter: Platter) -> None:
    """Have the functions of `os` tell the platter what they do."""
    open_file, fsync, fdatasync = os.open, os.fsync, os.fdatasync

    def opening(path, flags, mode=0o777, **options):  # type: ignore[no-untyped-def]
        descriptor = open_file(path, flags, mode, **options)
        if flags & os.O_EXCL:
            platter.created(descriptor)
        return descriptor

    def syncing(descriptor):  # type: ignore[no-untyped-def]
        fsync(descriptor)
        platter.synced(descriptor)

    def syncing_data(descriptor):  # type: ignore[no-untyped-def]
        fdatasync(descriptor)
        platter.synced(descriptor)

    def truncating(descriptor, size_bytes):  # type: ignore[no-untyped-def]
        truncate(descriptor, size_bytes)
        platter.truncated(descriptor, size_bytes)

    os.open, os.fsync, os.fdatasync, os.ftruncate = opening, syncing, syncing_data, truncating


def sync_one_by_one() -> None:
    """A sync of the whole file system goes past `os`; without it the node syncs its files singly."""
    from tailrace.storage.files import OsFiles

    if hasattr(OsFiles, "sync_all"):
        OsFiles.sync_all = lambda self, path: False  # type: ignore[method-assign]


if "PLATTER" in os.environ:
    place = Path(os.environ["PLATTER"])
    if os.environ.get("PLATTER_LIES") == "1":
        (place / "tree").mkdir(parents=True, exist_ok=True)
    else:
        watch(Platter(Path(os.environ["PLATTER_OF"]), place))
        sync_one_by_one()
