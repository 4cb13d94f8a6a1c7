"""The file system of the machine: the only module that opens, writes, syncs and renames (`storage.file_system`).

`OsFiles` keeps a bounded number of descriptors open, whatever the number of files: the least recently used is closed
and opened again at its next use.
"""

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tailrace.storage.file_system import (
    Buffer,
    _short_write,
    storage_error,
)
from tailrace.storage.read_buffers import ReadBuffers

DEFAULT_MAX_OPEN_FILES = 4096
_READ_BYTES = 1 << 16
_COPIED_BYTES = 4096
"""Up to this size new bytes, from the allocator's cache, are cheaper than the search for a free buffer."""
_REWRITE_BYTES = 1 << 20
_NOT_OFFERED = (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP)
"""The errors of a sandbox for system calls that it blocks: no disk has failed."""
_MAX_BUFFERS_PER_CALL = min(os.sysconf("SC_IOV_MAX"), 1024)


class OsFile:
    """A file of the operating system. Its descriptor comes and goes (see OsFiles)."""

    __slots__ = ("_closing", "_descriptor", "_files", "_path", "_pins", "used")

    def __init__(self, files: "OsFiles", path: str, descriptor: int) -> None:
        self._files = files
        self._path = path
        self._descriptor = descriptor
        self._pins = 0
        self._closing = False
        self.used = True
        """Whether the file was used since the last search for a descriptor to close."""

    @property
    def path(self) -> str:
        return self._path

    @property
    def is_pinned(self) -> bool:
        return self._pins > 0

    def size_bytes(self) -> int:
        return self._files.size_of(self._path)

    def writev(self, buffers: Sequence[Buffer]) -> int:
        descriptor = self._descriptor if self._descriptor >= 0 else self._reopen()
        self.used = True
        try:
            if len(buffers) <= _MAX_BUFFERS_PER_CALL:
                return os.writev(descriptor, buffers)
            return _write_many(descriptor, buffers)
        except OSError as fault:
            raise storage_error("write to", self._path, fault) from fault

    def pread(self, length: int, position: int) -> bytes:
        descriptor = self._descriptor if self._descriptor >= 0 else self._reopen()
        self.used = True
        try:
            return os.pread(descriptor, length, position)
        except OSError as fault:
            raise storage_error("read", self._path, fault) from fault

    def lend(self, length: int, position: int) -> Buffer:
        descriptor = self._descriptor if self._descriptor >= 0 else self._reopen()
        self.used = True
        try:
            if length <= _COPIED_BYTES:
                return os.pread(descriptor, length, position)
            view = memoryview(self._files.read_buffers.lend(length))
            return view[: os.preadv(descriptor, (view[:length],), position)].toreadonly()
        except OSError as fault:
            raise storage_error("read", self._path, fault) from fault

    def truncate(self, size_bytes: int) -> None:
        descriptor = self._descriptor if self._descriptor >= 0 else self._reopen()
        try:
            os.ftruncate(descriptor, size_bytes)
        except OSError as fault:
            raise storage_error("truncate", self._path, fault) from fault

    def rewrite(self, position: int) -> None:
        try:
            # # Not the usual descriptor, which always appends, whatever the position.
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                while content := os.pread(descriptor, _REWRITE_BYTES, position):
                    position += os.pwrite(descriptor, content, position)
            finally:
                os.close(descriptor)
        except OSError as fault:
            raise storage_error("rewrite", self._path, fault) from fault

    def sync(self) -> None:
        descriptor = self._descriptor if self._descriptor >= 0 else self._reopen()
        try:
            os.fdatasync(descriptor)
        except OSError as fault:
            raise storage_error("sync", self._path, fault) from fault

    def pin(self) -> None:
        if self._descriptor < 0:
            self._reopen()
        self._pins += 1

    def unpin(self) -> None:
        assert self._pins > 0, f"{self._path} is not pinned"
        self._pins -= 1
        if self._closing and not self._pins:
            self.close()

    def close(self) -> None:
        if self._pins:
            self._closing = True
        elif self._descriptor >= 0:
            self._files.forget(self)
            self.release()

    def release(self) -> None:
        """Close the descriptor; the file opens again at its next use."""
        descriptor, self._descriptor = self._descriptor, -1
        try:
            os.close(descriptor)
        except OSError as fault:
            raise storage_error("close", self._path, fault) from fault

    def _reopen(self) -> int:
        self._descriptor = self._open()
        self._files.remember(self)
        return self._descriptor

    def _open(self) -> int:
        return self._files.open_descriptor(self._path)


class OsNote(OsFile):
    """A note of the operating system. Its descriptor does not append."""

    __slots__ = ()

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as fault:
            raise storage_error("open", self._path, fault) from fault

    def overwrite(self, content: Buffer) -> None:
        descriptor = self._descriptor if self._descriptor >= 0 else self._reopen()
        self.used = True
        try:
            written = os.pwrite(descriptor, content, 0)
        except OSError as fault:
            raise storage_error("write to", self._path, fault) from fault
        if written != len(content):
            raise _short_write(self._path, written, len(content))


def _write_many(descriptor: int, buffers: Sequence[Buffer]) -> int:
    total = 0
    for first in range(0, len(buffers), _MAX_BUFFERS_PER_CALL):
        part = buffers[first : first + _MAX_BUFFERS_PER_CALL]
        written = os.writev(descriptor, part)
        total += written
        if written < sum(map(len, part)):
            break
    return total


class OsFiles:
    """The operating system's files, with at most `max_open_files` descriptors (pinned files may exceed it)."""

    __slots__ = ("_max_open_files", "_open", "read_buffers")

    def __init__(self, *, max_open_files: int = DEFAULT_MAX_OPEN_FILES) -> None:
        self._max_open_files = max_open_files
        self._open: OrderedDict[OsFile, None] = OrderedDict()
        self.read_buffers = ReadBuffers()

    @property
    def open_files(self) -> int:
        """The number of open descriptors."""
        return len(self._open)

    def open(self, path: str, *, create: bool = False) -> OsFile:
        if not create:
            return OsFile(self, path, -1)
        file = OsFile(self, path, self._create(path))
        self.remember(file)
        return file

    def open_note(self, path: str) -> OsNote:
        return OsNote(self, path, -1)

    def _create(self, path: str, permissions: int = 0o644) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            try:
                return os.open(path, flags, permissions)
            except FileExistsError:
                os.unlink(path)
                return os.open(path, flags, permissions)
        except OSError as fault:
            raise storage_error("create", path, fault) from fault

    def open_descriptor(self, path: str) -> int:
        """A descriptor of an existing file, for OsFile."""
        try:
            return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError as fault:
            raise storage_error("open", path, fault) from fault

    def remember(self, file: OsFile) -> None:
        """Count this file as open and close the least recently used one if there are too many, for OsFile."""
        self._open[file] = None
        # A second chance instead of a strict order: a hit then costs one attribute and no move in a dictionary.
        tries = len(self._open)
        while len(self._open) > self._max_open_files and tries:
            tries -= 1
            oldest = next(iter(self._open))
            if oldest is file or oldest.used or oldest.is_pinned:
                oldest.used = False
                self._open.move_to_end(oldest)
                continue
            del self._open[oldest]
            oldest.release()
        if len(self._open) > self._max_open_files:
            self._close_any(spare=file)

    def _close_any(self, *, spare: OsFile) -> None:
        for file in self._open:
            if file is not spare and not file.is_pinned:
                del self._open[file]
                file.release()
                return

    def forget(self, file: OsFile) -> None:
        """Count this file as closed, for OsFile."""
        self._open.pop(file, None)

    def list_dir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except OSError as fault:
            raise storage_error("list", path, fault) from fault

    def make_dirs(self, path: str) -> None:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as fault:
            raise storage_error("make directory", path, fault) from fault

    def rename(self, old: str, new: str) -> None:
        try:
            os.replace(old, new)
        except OSError as fault:
            raise storage_error(f"rename to {new}:", old, fault) from fault

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except OSError as fault:
            raise storage_error("remove", path, fault) from fault

    def remove_tree(self, path: str) -> None:
        try:
            # As shutil.rmtree does; shutil would come with three compressors, which cost every node memory.
            if os.path.islink(path):
                raise NotADirectoryError(errno.ENOTDIR, "a symbolic link", path)
            for directory, subdirectories, files in os.walk(path, topdown=False, onerror=_raise):
                for name in files:
                    os.unlink(os.path.join(directory, name))
                for name in subdirectories:
                    found = os.path.join(directory, name)
                    (os.unlink if os.path.islink(found) else os.rmdir)(found)
            os.rmdir(path)
        except OSError as fault:
            raise storage_error("remove directory", path, fault) from fault

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size_of(self, path: str) -> int:
        try:
            return os.stat(path).st_size
        except OSError as fault:
            raise storage_error("stat", path, fault) from fault

    def modified_ms(self, path: str) -> int:
        try:
            return os.stat(path).st_mtime_ns // 1_000_000
        except OSError as fault:
            raise storage_error("stat", path, fault) from fault

    def read_bytes(self, path: str) -> bytes:
        # Without a file object: at start this runs for a few small files of every partition.
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                content = os.read(descriptor, _READ_BYTES)
                if len(content) < _READ_BYTES:
                    return content
                return content + os.pread(descriptor, os.fstat(descriptor).st_size, _READ_BYTES)
            finally:
                os.close(descriptor)
        except OSError as fault:
            raise storage_error("read", path, fault) from fault

    def copy_part(self, path: str, target: str, position: int, size_bytes: int) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                content = os.pread(source, size_bytes, position)
            finally:
                os.close(source)
            descriptor = os.open(target, flags, 0o644)
            try:
                written = os.write(descriptor, content)
            finally:
                os.close(descriptor)
        except OSError as fault:
            raise storage_error(f"copy to {target}:", path, fault) from fault
        if written != len(content):
            raise _short_write(target, written, len(content))
        return written

    def write_durably(self, path: str, content: Buffer, *, is_secret: bool = False) -> None:
        descriptor = self._create(path, 0o600 if is_secret else 0o644)
        try:
            written = os.write(descriptor, content)
            if written != len(content):
                raise _short_write(path, written, len(content))
            os.fdatasync(descriptor)
        except OSError as fault:
            raise storage_error("write to", path, fault) from fault
        finally:
            os.close(descriptor)

    def sync_file(self, path: str) -> None:
        try:
            # Not the file's usual descriptor: another thread may close that descriptor at any time.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as fault:
            raise storage_error("sync", path, fault) from fault

    def sync_dir(self, path: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            return  # Only a foreign directory above ours is closed to us: we have made no name there.
        except OSError as fault:
            raise storage_error("sync directory", path, fault) from fault
        try:
            os.fsync(descriptor)
        except OSError as fault:
            raise storage_error("sync directory", path, fault) from fault
        finally:
            os.close(descriptor)

    def sync_all(self, path: str) -> bool:
        if _is_served_by_a_process(path):
            return False
        try:
            import ctypes  # not at the top: few nodes have so many files to sync

            sync_file_system: Callable[[int], int] = _c_library().syncfs
        except (AttributeError, ImportError, OSError):
            return False
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if sync_file_system(descriptor):
                    number = ctypes.get_errno()
                    if number in _NOT_OFFERED:
                        return False
                    raise OSError(number, os.strerror(number))
            finally:
                os.close(descriptor)
        except OSError as fault:
            raise storage_error("sync the disk of", path, fault) from fault
        return True

    def free_bytes(self, path: str) -> int:
        status = _file_system_of(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        status = _file_system_of(path)
        return status.f_blocks * status.f_frsize


@cache
def _c_library() -> Any:
    import ctypes

    # Python has os.sync, which reports no errors; Linux's syncfs does, from 5.8 on.
    return ctypes.CDLL(None, use_errno=True)


def _raise(fault: OSError) -> None:
    raise fault


def _is_served_by_a_process(path: str) -> bool:
    """Whether the path is on FUSE: there syncfs succeeds but does not reach the process behind the disk; fsync does."""
    try:
        device = os.stat(path).st_dev
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            return any(_is_fuse_mount(line, f"{os.major(device)}:{os.minor(device)}") for line in mounts)
    except OSError:
        return False  # not Linux: there is no syncfs either


def _is_fuse_mount(line: str, device: str) -> bool:
    fields, _, after = line.partition(" - ")
    return fields.split(" ", 3)[2] == device and after.startswith("fuse")


def _file_system_of(path: str) -> os.statvfs_result:
    try:
        return os.statvfs(path)
    except OSError as fault:
        raise storage_error("ask the free space of", path, fault) from fault
