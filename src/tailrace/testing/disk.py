"""A disk in memory that loses unsynced data: power cuts at any operation, torn writes, errors, a full disk.

The effects of a power cut, decided by the seed alone, independently for each file and each directory:

- bytes written since the file's last `sync` are lost, kept, kept up to some byte, or kept in some sectors only (the
  others read as zeros, or as the former bytes);
- a truncation since then is undone or not;
- names made, changed or removed since the directory's last `sync_dir` are each there or not, independently. A rename
  is one step: never both names, never neither, unless the file had none before.

Synced bytes are never lost, except with `SimulatedDisk(lying_sync=True)`, whose syncs do nothing and report success: a
test of durability that passes on it tests nothing.
"""

import errno
import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from tailrace.model.errors import StorageError
from tailrace.storage.file_system import Buffer, append_all
from tailrace.testing.disk_contents import Directory, Inode

TOTAL_SPACE: Final = 1 << 40


class PowerCut(Exception):
    """The power is off: every call of the disk fails until `reboot`."""


class SimulatedFile:
    """An open file of the simulated disk, usable after its name is removed, as any descriptor."""

    def __init__(self, disk: "SimulatedDisk", path: str, inode: Inode | None) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._pins = 0
        self._boot = disk.boots

    @property
    def path(self) -> str:
        return self._path

    def _opened(self) -> Inode:
        self._disk.check_power()
        if self._boot != self._disk.boots:
            raise PowerCut(f"{self._path} was opened before the power cut")
        if self._inode is None:
            self._inode = self._disk.inode(self._path)
        return self._inode

    def size_bytes(self) -> int:
        return len(self._opened().data)

    def writev(self, buffers: Sequence[Buffer]) -> int:
        inode = self._opened()
        content = b"".join(buffers)
        taken = self._disk.take_write(self._path, len(content))
        with_power = self._disk.begin("write", self._path)
        if taken:
            inode.changes.append((len(inode.data), content[:taken]))
            inode.data += content[:taken]
        self._disk.end(with_power)
        return taken

    def pread(self, length: int, position: int) -> bytes:
        data = self._opened().data
        self._disk.begin_read(self._path)
        return bytes(data[position : position + length])

    lend = pread

    def truncate(self, size_bytes: int) -> None:
        inode = self._opened()
        token = self._disk.begin("truncate", self._path)
        if size_bytes != len(inode.data):
            assert size_bytes < len(inode.data), f"{self._path}: a truncation to {size_bytes} would extend the file"
            self._disk.free_space += len(inode.data) - size_bytes
            del inode.data[size_bytes:]
            inode.changes.append((size_bytes, None))
        self._disk.end(token)

    def rewrite(self, position: int) -> None:
        inode = self._opened()
        token = self._disk.begin("rewrite", self._path)
        inode.changes.append((position, bytes(inode.data[position:])))
        self._disk.end(token)

    def sync(self) -> None:
        inode = self._opened()
        try:
            token = self._disk.begin("sync", self._path)
        except StorageError:
            inode.drop_unsynced()
            raise
        if not self._disk.lying_sync:
            inode.sync()
        self._disk.end(token)

    def pin(self) -> None:
        self._opened()
        self._pins += 1

    def unpin(self) -> None:
        assert self._pins > 0, f"{self._path} is not pinned"
        self._pins -= 1

    def close(self) -> None:
        """Nothing: descriptors cost nothing here."""


class SimulatedNote:
    """A small file that is written in place."""

    def __init__(self, disk: "SimulatedDisk", path: str) -> None:
        self._disk = disk
        self._path = path
        self._boot = disk.boots

    def overwrite(self, content: Buffer) -> None:
        if self._boot != self._disk.boots:
            raise PowerCut(f"{self._path} was opened before the power cut")
        self._disk.overwrite(self._path, content)

    def close(self) -> None:
        """Nothing: descriptors cost nothing here."""


class SimulatedDisk:
    """A FileSystem in memory. Same seed and same calls, same losses.

    Operations that change the disk are counted from 1 in `operations`; `cut_power_at` and `fail_at` name an operation
    by its number. `history` has a line per operation.
    """

    def __init__(self, seed: int = 0, *, lying_sync: bool = False) -> None:
        self.lying_sync = lying_sync
        self.operations = 0
        self.history: list[str] = []
        self.free_space = TOTAL_SPACE
        self.quota_bytes: int | None = None
        """The most bytes that one write may write, perhaps fewer than `free_bytes`; None for no quota."""
        self.modified_at_ms = 1_700_000_000_000
        """The time of the last write, the same for every file: times are not tracked here."""
        self.has_power = True
        self.boots = 0
        self._random = Random(seed)
        self._root = Directory()
        self._cuts: dict[int, bool] = {}
        self._failures: dict[int, str] = {}
        self._short_writes: dict[int, int] = {}
        self._failing_reads: dict[str, int] = {}
        self.on_operation: Callable[[int, str], None] | None = None
        """Called before each counted operation with its number and description."""

    @classmethod
    def with_directory(cls, path: str, seed: int = 0, *, lying_sync: bool = False) -> "SimulatedDisk":
        """A disk with this directory, which survives a power cut; `lying_sync` takes effect after that."""
        disk = cls(seed)
        disk.make_dirs(path)
        disk.sync_dir("/")
        disk.lying_sync = lying_sync
        return disk

    def cut_power_at(self, operation: int, *, after: bool = False) -> None:
        """Cut the power just before this operation takes place, or just after."""
        self._cuts[operation] = after

    def fail_at(self, operation: int, reason: str = "Input/output error") -> None:
        """Let this operation fail with StorageError and change nothing."""
        self._failures[operation] = reason

    def write_short_at(self, operation: int, taken_bytes: int) -> None:
        """Let this operation, a write, write this number of bytes only."""
        self._short_writes[operation] = taken_bytes

    def fail_reads_of(self, path: str, number: int = errno.EIO) -> None:
        """Let every read of this file fail with this errno, until the file is created again."""
        self._failing_reads[path] = number

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Damage one bit of a file, on the platter too."""
        inode = self.inode(path)
        inode.data[position] ^= 1 << bit
        if position < len(inode.durable):
            inode.durable[position] ^= 1 << bit

    def power_cut(self) -> None:
        """Cut the power now; the seed decides the losses. Raises nothing; every later call raises PowerCut."""
        self.has_power = False
        self._root.lose_unsynced(self._random)

    def reboot(self) -> None:
        """Switch the power on. Files that were open stay unusable; planned cuts and failures are removed."""
        self.has_power = True
        self.boots += 1
        self.forget_faults()

    def forget_faults(self) -> None:
        """Remove the planned cuts and failures that have not happened."""
        self._cuts.clear()
        self._failures.clear()
        self._short_writes.clear()

    def check_power(self) -> None:
        """Raise PowerCut if the power is off."""
        if not self.has_power:
            raise PowerCut("the disk has no power")

    def begin(self, action: str, path: str) -> int:
        """Count an operation, with its planned cut or failure. Returns the token for `end`."""
        self.check_power()
        self.operations += 1
        number = self.operations
        self.history.append(f"{number} {action} {path}")
        if self.on_operation is not None:
            self.on_operation(number, self.history[-1])
        if self._cuts.get(number) is False:
            self._cut(number)
        if number in self._failures:
            raise StorageError(f"cannot {action} {path}: {self._failures.pop(number)}")
        return number

    def end(self, token: int) -> None:
        """End an operation; a cut planned after it happens now."""
        if self._cuts.get(token):
            self._cut(token)

    def _cut(self, number: int) -> None:
        self.power_cut()
        raise PowerCut(self.history[number - 1])

    def begin_read(self, path: str) -> None:
        """Fail if reads of this file are to fail."""
        number = self._failing_reads.get(path)
        if number is not None:
            raise StorageError(f"cannot read {path}: {os.strerror(number)}", number)

    def take_write(self, path: str, size_bytes: int) -> int:
        """The number of bytes of a write for which there is space. Raises StorageError if there is no space."""
        left = self.free_space if self.quota_bytes is None else min(self.free_space, self.quota_bytes)
        taken = min(size_bytes, left, self._short_writes.pop(self.operations + 1, size_bytes))
        if size_bytes and not taken:
            self.begin("write", path)
            raise StorageError(f"cannot write to {path}: No space left on device", errno.ENOSPC)
        self.free_space -= taken
        return taken

    def _walk(self, path: str) -> tuple[Directory, str]:
        """The directory that holds this path, and the last name."""
        *above, name = [word for word in path.split("/") if word] or [""]
        directory = self._root
        for word in above:
            entry = directory.entries.get(word)
            if not isinstance(entry, Directory):
                raise StorageError(f"cannot open {path}: No such file or directory")
            directory = entry
        return directory, name

    def _find(self, path: str) -> Inode | Directory | None:
        try:
            directory, name = self._walk(path)
        except StorageError:
            return None
        return directory.entries.get(name) if name else directory

    def _directory(self, path: str) -> Directory:
        self.check_power()
        entry = self._find(path)
        if not isinstance(entry, Directory):
            raise StorageError(f"cannot open directory {path}: No such file or directory")
        return entry

    def inode(self, path: str) -> Inode:
        """The file at this path, for SimulatedFile."""
        self.check_power()
        entry = self._find(path)
        if not isinstance(entry, Inode):
            raise StorageError(f"cannot open {path}: No such file or directory")
        return entry

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        self.check_power()
        if not create:
            return SimulatedFile(self, path, None)
        directory, name = self._walk(path)
        inode = Inode()
        token = self.begin("create", path)
        self._failing_reads.pop(path, None)
        directory.change({name: inode})
        self.end(token)
        return SimulatedFile(self, path, inode)

    def list_dir(self, path: str) -> list[str]:
        return sorted(self._directory(path).entries)

    def write_durably(self, path: str, content: Buffer, *, is_secret: bool = False) -> None:
        file = self.open(path, create=True)
        append_all(file, content)
        file.sync()

    def copy_part(self, path: str, target: str, position: int, size_bytes: int) -> int:
        content = self.read_bytes(path)[position : position + size_bytes]
        append_all(self.open(target, create=not self.exists(target)), content)
        return len(content)

    def overwrite(self, path: str, content: Buffer) -> None:
        """Write in place, for SimulatedNote."""
        directory, name = self._walk(path)
        self.check_power()
        token = self.begin("overwrite", path)
        inode = directory.entries.get(name)
        if inode is None:
            inode = Inode()
            directory.change({name: inode})
        assert isinstance(inode, Inode), f"{path} is a directory"
        inode.data[: len(content)] = content
        inode.changes.append((0, bytes(content)))
        self.end(token)

    def open_note(self, path: str) -> SimulatedNote:
        return SimulatedNote(self, path)

    def sync_file(self, path: str) -> None:
        self.open(path).sync()

    def make_dirs(self, path: str) -> None:
        self.check_power()
        directory = self._root
        for word in (word for word in path.split("/") if word):
            entry = directory.entries.get(word)
            if entry is None:
                entry = Directory()
                token = self.begin("make directory", path)
                directory.change({word: entry})
                self.end(token)
            if not isinstance(entry, Directory):
                raise StorageError(f"cannot make directory {path}: File exists")
            directory = entry

    def rename(self, old: str, new: str) -> None:
        self.check_power()
        (old_directory, old_name), (new_directory, new_name) = self._walk(old), self._walk(new)
        assert old_directory is new_directory, f"{old}: a rename into another directory is not simulated"
        entry = old_directory.entries.get(old_name)
        if entry is None:
            raise StorageError(f"cannot rename {old}: No such file or directory")
        token = self.begin("rename", f"{old} -> {new}")
        old_directory.change({old_name: None, new_name: entry})
        self.end(token)

    def unlink(self, path: str) -> None:
        self.inode(path)
        directory, name = self._walk(path)
        token = self.begin("unlink", path)
        directory.change({name: None})
        self.end(token)

    def remove_tree(self, path: str) -> None:
        self._directory(path)
        directory, name = self._walk(path)
        token = self.begin("remove tree", path)
        directory.change({name: None})
        self.end(token)

    def exists(self, path: str) -> bool:
        self.check_power()
        return self._find(path) is not None

    def unsynced_bytes(self, path: str) -> int:
        """The bytes of this file's last writes that a power cut may lose; a truncation counts as a byte."""
        return sum(1 if written is None else len(written) for _, written in self.inode(path).changes)

    def is_name_durable(self, path: str) -> bool:
        """Whether the file would have this name after a power cut."""
        directory, name = self._walk(path)
        return directory.durable.get(name) is directory.entries[name]

    def size_of(self, path: str) -> int:
        return len(self.inode(path).data)

    def modified_ms(self, path: str) -> int:
        self.inode(path)
        return self.modified_at_ms

    def read_bytes(self, path: str) -> bytes:
        inode = self.inode(path)
        self.begin_read(path)
        return bytes(inode.data)

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        token = self.begin("sync directory", path)
        if not self.lying_sync:
            directory.sync()
        self.end(token)

    def sync_all(self, path: str) -> bool:
        token = self.begin("sync all", path)
        if not self.lying_sync:
            self._root.sync_all()
        self.end(token)
        return True

    def free_bytes(self, path: str) -> int:
        self._directory(path)
        return self.free_space

    def total_bytes(self, path: str) -> int:
        self._directory(path)
        return TOTAL_SPACE
