"""A node's data directory: only one node uses it at a time, and always the same node.

`.lock` is held while the node runs. `meta.properties` names the cluster and node of the data; a node with
another id in its settings refuses to start.
"""

import fcntl
import logging
import os
import secrets
from pathlib import Path
from types import TracebackType

from tailrace.model.errors import ErrorCode, KafkaError, StorageError
from tailrace.model.ids import TopicId, format_topic_id
from tailrace.model.partitions import METADATA_PARTITION
from tailrace.model.proofs import SECRET_BYTES, id_of_secret
from tailrace.storage.checkpoints import (
    META_PROPERTIES,
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from tailrace.storage.file_system import FileSystem, join
from tailrace.storage.files import OsFiles

_LOCK = ".lock"

_logger = logging.getLogger("tailrace.node")


class DirectoryLock:
    """Locks the data directory for this process; the operating system releases the lock when the process ends."""

    def __init__(self, directory: Path) -> None:
        """Make the directory if needed, and lock it. Raises KafkaError if another node has locked the directory."""
        try:
            make_durably(directory)
            self._file = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            raise StorageError(f"cannot use {directory}: it is a file; choose another --data-dir") from None
        except OSError as fault:
            raise StorageError(f"cannot use {directory}: {fault.strerror}; choose another --data-dir") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._file, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{directory} is in use by another node (process {owner}); stop it or choose another --data-dir",
            ) from None
        except OSError as fault:
            os.close(self._file)
            raise StorageError(
                f"cannot lock {directory}: {fault.strerror}; choose a --data-dir whose file system has locks"
            ) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode("ascii"))

    def release(self) -> None:
        """Release the lock."""
        os.close(self._file)

    def __enter__(self) -> "DirectoryLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def make_durably(directory: Path) -> None:
    """Make the directory and its missing parents; the name of each directory is on disk before the directory gets its
    content.

    The start of a node syncs the name of the data directory again, since an earlier process may have been killed before
    this sync.
    """
    if directory.is_dir():
        return
    above = directory.absolute().parent
    make_durably(above)
    directory.mkdir(exist_ok=True)
    OsFiles().sync_dir(str(above))


def claim_identity(files: FileSystem, directory: str, *, node_id: int) -> MetaProperties:
    """The identity of this directory. A new directory gets an id, and belongs to no cluster yet.

    A directory of a cluster whose metadata log is gone gets another id: the directory has lost its promises, as a new
    disk would have (decision 0018). Raises KafkaError if the directory belongs to another node.
    """
    known = read_meta_properties(files, directory)
    if known is None and files.exists(join(directory, str(METADATA_PARTITION))):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{directory} has a node's data but no {META_PROPERTIES}, which says whose they are:"
            " restore that file or choose another --data-dir",
        )
    if known is not None and known.node_id != node_id:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{directory} belongs to node {known.node_id}, not to node {node_id}:"
            f" set node.id={known.node_id} or choose another --data-dir",
        )
    has_lost_its_log = known is not None and known.cluster_id is not None and not _has_metadata(files, directory)
    if known is not None and known.directory_id is not None and not has_lost_its_log:
        return known
    if has_lost_its_log:
        _logger.warning("event=metadata-log-gone node=%d directory=%s action=new-directory-id", node_id, directory)
    secret = secrets.token_bytes(SECRET_BYTES)
    identity = MetaProperties(
        cluster_id=known.cluster_id if known is not None else None,
        node_id=node_id,
        directory_id=TopicId(id_of_secret(secret)),
        directory_secret=secret,
    )
    write_meta_properties(files, directory, identity)
    return identity


def _has_metadata(files: FileSystem, directory: str) -> bool:
    """Whether there is a log, empty or not, or a snapshot to begin with."""
    path = join(directory, str(METADATA_PARTITION))
    return files.exists(path) and any(name.endswith((".log", ".checkpoint")) for name in files.list_dir(path))


def new_cluster_id() -> str:
    """The id of a cluster that is being founded."""
    return format_topic_id(_random_id())


def _random_id() -> TopicId:
    """16 random bytes whose text form does not start with a dash: command lines would take it for an option."""
    while True:
        candidate = TopicId(secrets.token_bytes(16))
        if not format_topic_id(candidate).startswith("-"):
            return candidate
