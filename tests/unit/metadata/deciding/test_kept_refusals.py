"""A refusal that the outcome of a command keeps has no traceback, whose frames would keep the received request."""

import pytest

from tailrace.metadata.commands import (
    AlterPartition,
    AlterReassignments,
    ControllerCommand,
    ElectLeaders,
    InSyncChange,
    PartitionIncrease,
    Reassignment,
)
from tailrace.metadata.deciding.in_sync_changes import InSyncChanges
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import ElectionType, TopicPartition
from testkit.quorum.controller_commands import create_partitions
from testkit.quorum.controllers import controller_machine

ABSENT = TopicPartition("absent", 0)


@pytest.mark.parametrize(
    "command",
    [
        create_partitions(PartitionIncrease(name="absent", count=2)),
        AlterReassignments(reassignments=(Reassignment(topic_partition=ABSENT, replicas=None),)),
        ElectLeaders(type=ElectionType.PREFERRED, partitions=(ABSENT,)),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_kept_refusal_has_no_frames(command: ControllerCommand) -> None:
    (outcome,) = controller_machine().decide(command, 0).response.outcomes  # type: ignore[attr-defined]
    assert isinstance(outcome.error, KafkaError)
    assert outcome.error.detail
    assert outcome.error.__traceback__ is None


def test_a_kept_refusal_of_a_leader_has_no_frames() -> None:
    change = InSyncChange(
        topic_id=TopicId(bytes(16)), partition=0, leader_epoch=0, partition_epoch=0, in_sync_replicas=()
    )
    command = AlterPartition(broker_id=BrokerId(1), broker_epoch=0, changes=(change,))
    (outcome,) = InSyncChanges(controller_machine().image).decide(command).response.outcomes
    assert isinstance(outcome.result, KafkaError)
    assert outcome.result.__traceback__ is None
