"""Runs first in a node whose disk is to fail: does to its data what a file of the node's name says.

Python imports a module of this name before all others. BAD_DISK names a directory; the file `node-N` in it holds what
the disk of that node does now, and is looked at with each call:

- `full`: nothing more can be written;
- `eio`: no sync succeeds;
- `eio-twice`: no sync succeeds but those of the first probe, so that the node begins anew twice and then waits;
- `slow`: each sync takes a fifth of a second longer;
- `hung`: no sync returns, until the file is gone.

BAD_DISK_OF is the directory of the cluster: all else that a node writes is let through.
"""

import errno
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOOK_S = 0.02
SLOW_S = 0.2
_PROBE = ".disk-probe"


class BadDisk:
    """The disk's fault now."""

    def __init__(self, order: Path, data: str) -> None:
        self._order = order
        self._data = data

    def does(self, what: str, descriptor: int) -> bool:
        """Whether it does this to the file."""
        try:
            order = self._order.read_text()
        except FileNotFoundError:
            return False
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if order == "eio-twice":
            order = "" if IS_FIRST_PROBE and (Path(path).name == _PROBE or Path(path).is_dir()) else "eio"
        return order == what and path.startswith(self._data)


def break_writes(disk: BadDisk, write: Callable[..., Any]) -> Callable[..., Any]:
    def writing(descriptor: int, *rest: Any) -> Any:
        if disk.does("full", descriptor):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, *rest)

    return writing


def break_syncs(disk: BadDisk, sync: Callable[[int], None]) -> Callable[[int], None]:
    def syncing(descriptor: int) -> None:
        while disk.does("hung", descriptor):
            time.sleep(LOOK_S)
        if disk.does("slow", descriptor):
            time.sleep(SLOW_S)
        if disk.does("eio", descriptor):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    return syncing


def sync_one_by_one() -> None:
    """A sync of the whole file system goes past `os`; without it the node syncs its files singly."""
    from tailrace.storage.files import OsFiles

    OsFiles.sync_all = lambda self, path: False  # type: ignore[method-assign]


IS_FIRST_PROBE = sys.orig_argv[-2:] == ["--disk-failures", "1"]
NODE = re.search(r"node-\d+", " ".join(sys.orig_argv))
if "BAD_DISK" in os.environ and NODE is not None:
    bad_disk = BadDisk(Path(os.environ["BAD_DISK"]) / NODE.group(), os.environ["BAD_DISK_OF"])
    os.writev, os.write, os.pwrite = (break_writes(bad_disk, call) for call in (os.writev, os.write, os.pwrite))
    os.fsync, os.fdatasync = (break_syncs(bad_disk, call) for call in (os.fsync, os.fdatasync))
    sync_one_by_one()
