"""The partition of the metadata log in the messages between its replicas.

This module checks the form of messages from outside: messages must name this partition only, and answers must have
possible ids and epochs. The machine checks all other values, except for epochs so high that hardly any further epoch
could follow.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.model.partitions import METADATA_PARTITION
from tailrace.raft.rpc import NO_LEADER, Response
from tailrace.raft.voters import VoterListener

TOPIC: Final = METADATA_PARTITION.topic
INDEX: Final = METADATA_PARTITION.partition

NEWEST_EPOCH: Final = 2**31 - 1 - 2**16
"""The newest epoch that is accepted from peers. A replica enters each newer epoch, and each election raises the epoch
by 1. In files, batches and messages an epoch is an int32: a lone voter in the last epoch would elect itself in an epoch
that does not fit, fail, and fail again at each start. From `NEWEST_EPOCH` on 65,536 elections are left. No quorum gets
this far by its own elections: with an election in each second that would take 68 years."""

Where = tuple[VoterListener, int] | None
"""The address of the leader that an answer names, and its id; None for an unknown leader."""


def only_requested(topics: Sequence[Any], topic_name: str, partition_name: str) -> Any:
    """The only partition that a request may name. Raises INVALID_REQUEST for any other partition, as Kafka does."""
    if len(topics) == 1 and getattr(topics[0], topic_name) == TOPIC and len(topics[0].partitions) == 1:
        found = topics[0].partitions[0]
        if getattr(found, partition_name) == INDEX:
            return found
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"asked for anything else than {METADATA_PARTITION}")


def checked_epoch(epoch: int) -> int:
    """The epoch of a request, after a check: this replica would enter the epoch. Raises INVALID_REQUEST above
    `NEWEST_EPOCH`."""
    if epoch > NEWEST_EPOCH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"epoch {epoch}: hardly any could follow it")
    return epoch


def is_for_all(response: Response) -> bool:
    """Whether the error concerns the request and not one partition."""
    return response.error is ErrorCode.INCONSISTENT_CLUSTER_ID


def only_answered(topics: Sequence[Any], is_here: Callable[[Any, Any], bool]) -> Any:
    """The only partition of an answer. Raises MalformedMessage for an answer of any other form."""
    if len(topics) == 1 and len(topics[0].partitions) == 1 and is_here(topics[0], topics[0].partitions[0]):
        return topics[0].partitions[0]
    raise MalformedMessage(f"an answer that is not about {METADATA_PARTITION} alone")


def leadership(leader_id: int, leader_epoch: int) -> Mapping[str, int]:
    """The leader and epoch in an answer. Raises MalformedMessage for impossible values."""
    if leader_id < NO_LEADER or not -1 <= leader_epoch <= NEWEST_EPOCH:
        raise MalformedMessage(f"an answer that names leader {leader_id} of epoch {leader_epoch}")
    return {"leader_id": leader_id, "leader_epoch": leader_epoch}


def known_code(code: int) -> ErrorCode:
    """The error of an answer; UNKNOWN_SERVER_ERROR for a code that this release does not know."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
