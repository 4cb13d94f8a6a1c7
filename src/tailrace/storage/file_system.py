"""The ports to a disk, `File`, `Note` and `FileSystem`, and the few functions that need only these ports.

Rules of the ports:

1. Every failure is a StorageError that names the path and the operating system's words.
2. A file only grows at its end. `writev` returns the number of written bytes; the caller cuts a part back. Only a
   `Note` of a few bytes is written in place.
3. Written bytes are safe from a power cut after `sync`, a name after `sync_dir` of its directory, and not before.
4. `open(create=True)` makes a new inode, whatever had the name before. No inode is ever used twice.
"""

import errno
from collections.abc import Sequence
from posixpath import dirname
from typing import Protocol

from tailrace.model.errors import StorageError

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """A file that is appended to and read."""

    @property
    def path(self) -> str: ...

    def size_bytes(self) -> int:
        """The size now, asked of the file system."""
        ...

    def writev(self, buffers: Sequence[Buffer]) -> int:
        """Append the buffers in order; return the bytes that were written, which are fewer when the disk is full."""
        ...

    def pread(self, length: int, position: int) -> bytes:
        """The bytes from `position` on, owned by the caller; fewer than `length` at the end of the file."""
        ...

    def lend(self, length: int, position: int) -> Buffer:
        """Read like `pread`, into memory that is used again once no view of the memory exists: for answers that are
        sent at once."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Cut the file to this size, which is at most the present size."""
        ...

    def rewrite(self, position: int) -> None:
        """Write the bytes from `position` on once more, in place, so that the next `sync` covers the bytes.

        After a failed sync Linux takes the pages for clean: readers see the bytes, but no later sync writes the pages.
        """
        ...

    def sync(self) -> None:
        """Return when all written bytes are durable. May run on another thread while the file is pinned."""
        ...

    def pin(self) -> None:
        """Keep the file open until `unpin`, for `sync` on another thread."""
        ...

    def unpin(self) -> None:
        """Undo one `pin`."""
        ...

    def close(self) -> None:
        """Give the descriptor back. Harmless if done twice."""
        ...


class Note(Protocol):
    """A file of a few bytes that is written in place, again and again."""

    def overwrite(self, content: Buffer) -> None:
        """Write these bytes in place, from the start of the file on.

        The bytes are not durable before `sync_file`, nor a new name before `sync_dir`; a power cut may tear the bytes.
        """
        ...

    def close(self) -> None:
        """Give the descriptor back. Harmless if done twice."""
        ...


class FileSystem(Protocol):
    """Directories and whole files, by path."""

    def open(self, path: str, *, create: bool = False) -> File:
        """The file at this path. Without `create` a missing file is noticed at its first use."""
        ...

    def open_note(self, path: str) -> Note:
        """The note at this path, which is made at its first use."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def make_dirs(self, path: str) -> None:
        """Make the directory and its missing parents."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file or directory a new name in one step; a file that has that name is replaced."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and everything below."""
        ...

    def exists(self, path: str) -> bool: ...

    def size_of(self, path: str) -> int:
        """The size of a file in bytes, read without an open."""
        ...

    def modified_ms(self, path: str) -> int:
        """The time at which the file was last written to, ms since 1970."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """The whole of a small file."""
        ...

    def write_durably(self, path: str, content: Buffer, *, is_secret: bool = False) -> None:
        """Make the file at this path anew with this content. On return the content is durable, but a new name is not.

        Only the owner of the process may read a secret file; every user that the umask admits may read other files.
        May be called from any thread, like `sync_file` and `sync_dir`.
        """
        ...

    def copy_part(self, path: str, target: str, position: int, size_bytes: int) -> int:
        """Append so many bytes of one file, from this position on, to `target`, which is made if need be.

        Returns the count of bytes; nothing is synced. On any thread. Raises StorageError.
        """
        ...

    def sync_file(self, path: str) -> None:
        """Return when all bytes written to the file at this path are durable."""
        ...

    def sync_dir(self, path: str) -> None:
        """Return when the names in this directory are durable."""
        ...

    def sync_all(self, path: str) -> bool:
        """Return when everything on the disk that holds this path is durable, files and names; from any thread.

        False if this system has no such call. One call serves a thousand new files; a sync for each file would wait for
        the disk each time.
        """
        ...

    def free_bytes(self, path: str) -> int:
        """The space left for us on the disk that holds this path."""
        ...

    def total_bytes(self, path: str) -> int:
        """The size of the disk that holds this path."""
        ...


def storage_error(action: str, path: str, fault: OSError) -> StorageError:
    """The error for a failed call of the operating system."""
    return StorageError(f"cannot {action} {path}: {fault.strerror or fault}", fault.errno or 0)


def join(directory: str, name: str) -> str:
    """The path of a name in a directory, for both the real and the simulated disk."""
    return f"{directory}/{name}"


def parent(path: str) -> str:
    """The directory that holds this path."""
    return dirname(path.rstrip("/")) or "."


def append_all(file: File, content: Buffer) -> None:
    """Append the whole content. Raises StorageError if only a part of it was written."""
    written = file.writev((content,))
    if written != len(content):
        raise _short_write(file.path, written, len(content))


def _short_write(path: str, written: int, wanted: int) -> StorageError:
    fault = f"{path}: only {written} of {wanted} bytes were written; the disk may be full"
    return StorageError(fault, errno.ENOSPC)
