"""Small files that are replaced whole: offsets per partition, the identity of a directory, the mark of a clean stop.

A reader sees the old content or the new content, never a mixture: `replace_file` writes beside the file, syncs, renames
and syncs the directory. Formats are Kafka's, byte for byte, so that Kafka's tools read the files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tailrace.model.errors import CorruptRecords
from tailrace.model.ids import TopicId, format_topic_id, parse_topic_id
from tailrace.model.partitions import TopicPartition
from tailrace.model.proofs import NO_SECRET, may_speak_for
from tailrace.storage.file_system import Buffer, FileSystem, append_all, join, parent

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
"""Per partition: everything below this offset is flushed."""
LOG_STARTS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
"""Per partition: below this offset the log was compacted."""
GAP_BOUND: Final = "gap-offset-checkpoint"
"""A file in a partition's directory. Below its offset there may be gaps, whatever the topic's settings are now."""
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
META_PROPERTIES: Final = "meta.properties"
PARTITION_METADATA: Final = "partition.metadata"

TEMPORARY_SUFFIX: Final = ".tmp"

_MAX_OFFSET: Final = 2**63 - 1


def replace_file(files: FileSystem, path: str, content: Buffer, *, is_secret: bool = False) -> None:
    """Write this content to `path`, durable when the call returns. On any thread; a path has one writer at a time."""
    temporary = path + TEMPORARY_SUFFIX
    files.write_durably(temporary, content, is_secret=is_secret)
    files.rename(temporary, path)
    files.sync_dir(parent(path))


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Version 0, the count, then `topic partition offset` per line."""
    lines = ["0", str(len(offsets)), *(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())]
    return ("\n".join(lines) + "\n").encode("ascii")


def parse_offsets(data: bytes, *, path: str) -> dict[TopicPartition, int]:
    """The inverse of `format_offsets`. Raises CorruptRecords that names the file."""
    lines = data.decode("ascii", "replace").splitlines()
    try:
        version, count = int(lines[0]), int(lines[1])
        if version != 0 or len(lines) != count + 2:
            raise ValueError
        offsets = {}
        for line in lines[2:]:
            topic, partition, offset = line.split(" ")
            offsets[TopicPartition(topic, int(partition))] = int(offset)
        if not all(0 <= offset <= _MAX_OFFSET for offset in offsets.values()):
            raise ValueError
        if len(offsets) != count:
            raise ValueError
    except (ValueError, IndexError):
        raise CorruptRecords(
            f"{path} is not a checkpoint of offsets (version 0, a count, and that many lines of topic partition "
            "offset); remove it to start from 0 for all its partitions"
        ) from None
    return offsets


def write_offsets(files: FileSystem, directory: str, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace a checkpoint of offsets: RECOVERY_POINTS, LOG_STARTS or HIGH_WATERMARKS."""
    replace_file(files, join(directory, name), format_offsets(offsets))


def read_offsets(files: FileSystem, directory: str, name: str) -> dict[TopicPartition, int]:
    """The offsets that `write_offsets` wrote last; empty without a file."""
    path = join(directory, name)
    return parse_offsets(files.read_bytes(path), path=path) if files.exists(path) else {}


def write_gap_bound(files: FileSystem, directory: str, offset: int) -> None:
    """Note that this log may have gaps below this offset. The note is durable on return, before the first gap."""
    replace_file(files, join(directory, GAP_BOUND), f"0\n{offset}\n".encode("ascii"))


def read_gap_bound(files: FileSystem, directory: str) -> int:
    """The bound that `write_gap_bound` wrote. Raises CorruptRecords that names the file."""
    path = join(directory, GAP_BOUND)
    try:
        version, offset = map(int, files.read_bytes(path).split())
        if version != 0:
            raise ValueError
    except ValueError:
        raise CorruptRecords(f"{path} is not version 0 and an offset") from None
    return offset


def write_clean_shutdown(files: FileSystem, directory: str, *, broker_epoch: int) -> None:
    """Note that every log of this directory was closed cleanly by a broker of this epoch (-1: no epoch)."""
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    replace_file(files, join(directory, CLEAN_SHUTDOWN), content.encode("ascii"))


def take_clean_shutdown(files: FileSystem, directory: str) -> int | None:
    """The broker epoch of the last clean stop, or None after a crash. Removes the mark, durably, before it returns. The
    mark must be removed before the first log changes: a crash right after would otherwise pass as a clean stop.
    """
    path = join(directory, CLEAN_SHUTDOWN)
    if not files.exists(path):
        return None
    data = files.read_bytes(path)
    files.unlink(path)
    files.sync_dir(directory)
    try:
        content = json.loads(data)
        return int(content["brokerEpoch"]) if content["version"] == 0 else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # infinity; brackets without end
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """The cluster and the node that this directory belongs to, and its own id."""

    cluster_id: str | None
    """None if the directory has not joined a cluster yet."""
    node_id: int
    directory_id: TopicId | None = None
    """The id of the directory. A new id shows a new disk: the node must not claim the records of the old disk
    (KIP-858)."""
    directory_secret: bytes = field(default=NO_SECRET, repr=False)
    """A secret that proves that a request comes from the node with this directory, if the node's id needs a proof
    (`model.proofs`)."""


def write_meta_properties(files: FileSystem, directory: str, properties: MetaProperties) -> None:
    """Write `meta.properties`, version 1. The file may hold a secret (decision 0076): only its owner can read it."""
    values = {"node.id": str(properties.node_id), "version": "1"}
    if properties.cluster_id is not None:
        values["cluster.id"] = properties.cluster_id
    if properties.directory_id is not None:
        values["directory.id"] = format_topic_id(properties.directory_id)
    if properties.directory_secret != NO_SECRET:
        values["directory.secret"] = format_topic_id(properties.directory_secret)
    content = "#\n" + "".join(f"{key}={values[key]}\n" for key in sorted(values))
    replace_file(files, join(directory, META_PROPERTIES), content.encode("utf-8"), is_secret=True)


def read_meta_properties(files: FileSystem, directory: str) -> MetaProperties | None:
    """The properties that this module or Kafka wrote, None for a new directory. Raises CorruptRecords if illegible."""
    path = join(directory, META_PROPERTIES)
    if not files.exists(path):
        return None
    lines = files.read_bytes(path).decode("utf-8", "replace").splitlines()
    values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith(("#", "!")))
    try:
        if values.get("version", "1").strip() != "1":
            raise ValueError(f"version {values['version']} is not known here")
        cluster_id, directory_id = values.get("cluster.id"), values.get("directory.id")
        found = MetaProperties(
            cluster_id=None if cluster_id is None else cluster_id.strip(),
            node_id=int(values["node.id"]),
            directory_id=None if directory_id is None else parse_topic_id(directory_id.strip()),
            directory_secret=parse_topic_id(values.get("directory.secret", format_topic_id(NO_SECRET)).strip()),
        )
        if not may_speak_for(found.directory_id or b"", found.directory_secret):
            raise ValueError("its directory.secret is not that of its directory.id")
        return found
    except KeyError as missing:
        raise CorruptRecords(f"{path} is damaged: it has no {missing.args[0]}; restore it from a copy") from None
    except ValueError as fault:
        raise CorruptRecords(f"{path} cannot be used: {fault}; restore it from a copy") from None


def write_partition_metadata(files: FileSystem, directory: str, topic_id: TopicId) -> None:
    """Write `partition.metadata`: which topic, by id, this partition's directory belongs to."""
    replace_file(files, join(directory, PARTITION_METADATA), _partition_metadata(topic_id))


def begin_partition_metadata(files: FileSystem, directory: str, topic_id: TopicId) -> None:
    """Write `partition.metadata` into a new directory; durable when the file and the directory are synced."""
    file = files.open(join(directory, PARTITION_METADATA), create=True)
    append_all(file, _partition_metadata(topic_id))
    file.close()


def _partition_metadata(topic_id: TopicId) -> bytes:
    return f"version: 0\ntopic_id: {format_topic_id(topic_id)}".encode("ascii")


def read_partition_metadata(files: FileSystem, directory: str) -> TopicId | None:
    """The topic's id, None if the file is missing. Raises CorruptRecords for an illegible file."""
    path = join(directory, PARTITION_METADATA)
    if not files.exists(path):
        return None
    lines = files.read_bytes(path).decode("ascii", "replace").splitlines()
    values = dict(line.split(": ", 1) for line in lines if ": " in line)
    try:
        if values["version"] != "0":
            raise ValueError(f"version {values['version']} is not known")
        return parse_topic_id(values["topic_id"])
    except (KeyError, ValueError) as fault:
        raise CorruptRecords(f"{path} is not a partition.metadata file: {fault}") from None
