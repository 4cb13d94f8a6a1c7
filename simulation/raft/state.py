"""The state machine of a simulated replica: a hash of everything committed; and its snapshots as bytes."""

import zlib
from dataclasses import dataclass
from hashlib import blake2b

from simulation.raft.log import EpochRecord, LogImage
from tailrace.raft.rpc import SnapshotId
from tailrace.raft.voters import ReplicaKey, Voter, VoterSet

SNAPSHOT_PADDING = 150
"""Bytes that make a snapshot take several answers."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of the state machine after all records below `offset`."""

    offset: int = 0
    digest: bytes = b""

    def apply(self, entry: EpochRecord) -> "State":
        text = f"{entry.epoch}|{entry.value!r}".encode()
        return State(self.offset + 1, blake2b(self.digest + text, digest_size=8).digest())


class StateMachine:
    """The state of a replica, and the states it had before."""

    def __init__(self, state: State | None = None) -> None:
        self.state = state or State()
        self._past: dict[int, State] = {}

    def apply_to(self, end_offset: int, log: LogImage) -> None:
        """Apply the records of the log below this offset."""
        while self.state.offset < end_offset:
            entry = log.at(self.state.offset)
            assert entry is not None, f"{self.state.offset} is not in the log"
            self.state = self.state.apply(entry)
            self._past[self.state.offset] = self.state

    def at(self, end_offset: int, log: LogImage) -> State | None:
        """The state after all records below this offset, committed or not."""
        state = self._past.get(end_offset)
        if state is not None or not self.state.offset < end_offset <= log.end:
            return state
        state = self.state
        while state.offset < end_offset:
            entry = log.at(state.offset)
            if entry is None:
                return None
            state = state.apply(entry)
        return state


def encode_snapshot(snapshot_id: SnapshotId, state: State, voters: VoterSet | None) -> bytes:
    """A snapshot as text with a checksum at its end."""
    keys = ",".join(f"{key.id}:{key.directory_id.hex()}" for key in voters.keys) if voters is not None else "-"
    body = f"{snapshot_id.end_offset} {snapshot_id.epoch} {state.digest.hex() or '-'} {keys} {'.' * SNAPSHOT_PADDING} "
    return f"{body}{zlib.crc32(body.encode()):08x}".encode()


def decode_snapshot(data: bytes) -> tuple[SnapshotId, State, VoterSet | None]:
    """The state in the bytes of `encode_snapshot`. Raises ValueError if a single byte differs."""
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
