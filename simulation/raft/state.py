"""The state machine of a simulated replica: a hash of everything committed; and its snapshots as bytes."""

import zlib
from dataclasses import dataclass
from hashlib import blake2b

from simulation.raft.log import Entry
from tailrace.raft.rpc import SnapshotId
from tailrace.raft.voters import ReplicaKey, Voter, VoterSet

SNAPSHOT_PADDING = 150
"""Bytes that make a snapshot take several answers."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of the state machine after all records below `offset`."""

    offset: int = 0
    digest: bytes = b""

    def apply(self, entry: Entry) -> "State":
        text = f"{entry.epoch}|{entry.value!r}".encode()
        return State(self.offset + 1, blake2b(self.digest + text, digest_size=8).digest())


def encode_snapshot(snapshot_id: SnapshotId, state: State, voters: VoterSet | None) -> bytes:
    """A snapshot as text with a checksum at its end."""
    keys = ",".join(f"{key.id}:{key.directory_id.hex()}" for key in voters.keys) if voters is not None else "-"
    body = f"{snapshot_id.end_offset} {snapshot_id.epoch} {state.digest.hex() or '-'} {keys} {'.' * SNAPSHOT_PADDING} "
    return f"{body}{zlib.crc32(body.encode()):08x}".encode()


def decode_snapshot(data: bytes) -> tuple[SnapshotId, State, VoterSet | None]:
    """The inverse. Raises ValueError if a single byte is another one."""
    body, checksum = data[:-8], data[-8:]
    if f"{zlib.crc32(body):08x}".encode() != checksum:
        raise ValueError("the checksum is wrong")
    end_offset, epoch, digest, keys, _ = body.decode().split()
    voters = None if keys == "-" else VoterSet.of(Voter(_parse_key(key)) for key in keys.split(","))
    state = State(int(end_offset), b"" if digest == "-" else bytes.fromhex(digest))
    return SnapshotId(int(end_offset), int(epoch)), state, voters


def _parse_key(text: str) -> ReplicaKey:
    node_id, directory_id = text.split(":")
    return ReplicaKey(int(node_id), bytes.fromhex(directory_id))


def key_of(node_id: int, directory: int = 1) -> ReplicaKey:
    """The key of a simulated node in its first, second, ... directory."""
    return ReplicaKey(node_id, bytes(14) + bytes([directory, node_id]))
