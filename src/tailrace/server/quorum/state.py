"""The content of the file `quorum-state`: what a voter must remember before it acts, in Kafka's JSON.

Version 0 names the voters, which are static; version 1 leaves them to the log and has the directory of the candidate
that got the vote (KIP-853). It is durable before any request or answer of the epoch it names leaves.
"""

import base64
import json
from dataclasses import dataclass

from tailrace.model.errors import CorruptRecords
from tailrace.model.ids import NO_LEADER, BrokerId

_STATIC_VERSION = 0
_DYNAMIC_VERSION = 1
_DIRECTORY_BYTES = 16
_NO_DIRECTORY = "A" * 22


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredQuorumState:
    """The leader and its epoch, the vote of this voter, and the voters."""

    leader_id: BrokerId = NO_LEADER
    leader_epoch: int = 0
    voted_id: BrokerId = NO_LEADER
    voters: tuple[BrokerId, ...] = ()
    """Those of a static quorum; none: the log has the voters."""
    voted_directory_id: bytes = bytes(_DIRECTORY_BYTES)
    """Kept if the log has the voters. Zeros: not known."""


def format_quorum_state(state: StoredQuorumState) -> bytes:
    """The content of the file."""
    content: dict[str, object] = {"leaderId": state.leader_id, "leaderEpoch": state.leader_epoch}
    content["votedId"] = state.voted_id
    if state.voters:
        content = {"clusterId": "", **content, "appliedOffset": 0}
        content["currentVoters"] = [{"voterId": voter} for voter in state.voters]
        content["data_version"] = _STATIC_VERSION
    else:
        directory = base64.urlsafe_b64encode(state.voted_directory_id).decode("ascii").rstrip("=")
        content["votedDirectoryId"] = directory
        content["data_version"] = _DYNAMIC_VERSION
    return json.dumps(content, separators=(",", ":")).encode("ascii")


def parse_quorum_state(data: bytes, *, path: str) -> StoredQuorumState:
    """The inverse of `format_quorum_state`. Raises CorruptRecords that names the file."""
    try:
        content = json.loads(data)
        version = content["data_version"]
        if version not in (_STATIC_VERSION, _DYNAMIC_VERSION):
            raise ValueError(f"data_version {version} is not known")
        voters = content["currentVoters"] if version == _STATIC_VERSION else ()
        directory = content["votedDirectoryId"] if version == _DYNAMIC_VERSION else _NO_DIRECTORY
        return StoredQuorumState(
            leader_id=BrokerId(int(content["leaderId"])),
            leader_epoch=int(content["leaderEpoch"]),
            voted_id=BrokerId(int(content["votedId"])),
            voters=tuple(BrokerId(int(voter["voterId"])) for voter in voters),
            voted_directory_id=_parse_directory(directory),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as fault:
        raise CorruptRecords(f"{path} is not a quorum-state file: {fault}") from None


def _parse_directory(text: str) -> bytes:
    directory = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    if len(directory) != _DIRECTORY_BYTES:
        raise ValueError(f"{text!r} is not the id of a directory")
    return directory
