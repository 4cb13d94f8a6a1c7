"""The content of the file `quorum-state`: what a voter must remember before it acts, in Kafka's JSON (version 0).

It is durable before any batch of the epoch it names is written, so that no epoch is ever used twice.
"""

import json
from dataclasses import dataclass

from tailrace.model.errors import CorruptRecords
from tailrace.model.ids import NO_LEADER, BrokerId

_DATA_VERSION = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumState:
    """Who leads in which epoch, whom this voter gave its vote, and who may vote."""

    leader_id: BrokerId = NO_LEADER
    leader_epoch: int = 0
    voted_id: BrokerId = NO_LEADER
    voters: tuple[BrokerId, ...] = ()


def format_quorum_state(state: QuorumState) -> bytes:
    """The content of the file."""
    content = {
        "clusterId": "",
        "leaderId": state.leader_id,
        "leaderEpoch": state.leader_epoch,
        "votedId": state.voted_id,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": voter} for voter in state.voters],
        "data_version": _DATA_VERSION,
    }
    return json.dumps(content, separators=(",", ":")).encode("ascii")


def parse_quorum_state(data: bytes, *, path: str) -> QuorumState:
    """The inverse of `format_quorum_state`. Raises CorruptRecords that names the file."""
    try:
        content = json.loads(data)
        if content["data_version"] != _DATA_VERSION:
            raise ValueError(f"data_version {content['data_version']} is not known")
        return QuorumState(
            leader_id=BrokerId(int(content["leaderId"])),
            leader_epoch=int(content["leaderEpoch"]),
            voted_id=BrokerId(int(content["votedId"])),
            voters=tuple(BrokerId(int(voter["voterId"])) for voter in content["currentVoters"]),
        )
    except (ValueError, KeyError, TypeError) as fault:
        raise CorruptRecords(f"{path} is not a quorum-state file: {fault}") from None
