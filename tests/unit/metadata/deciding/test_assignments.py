"""AssignDirectories: replicas find their directories, each by itself (KIP-858)."""

from itertools import count

import pytest

from tailrace.metadata.broker_commands import RegisterBroker, UnfenceBroker
from tailrace.metadata.commands import (
    AssignDirectories,
    DirectoriesAssigned,
    DirectoryAssignment,
    ReplicaAssignment,
    TopicSpec,
)
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.records.topics import UNASSIGNED_DIRECTORY
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId
from testkit.quorum.controller_commands import create_topics
from testkit.quorum.controllers import controller_machine

FIRST, SECOND = b"first directory.", b"second directory"


class DirectoryAssignmentsBench:
    """A machine with two brokers, the first with two directories, and two topics."""

    def __init__(self) -> None:
        numbers = count(1 << 120)
        self.machine = controller_machine(random_bytes=lambda size: next(numbers).to_bytes(16, "big")[-size:])
        self.offset = 0
        self.epochs = [self._start(1, (FIRST, SECOND)), self._start(2, (b"of another broker"[:16],))]
        self.topic_id = self._create("orders", 1, 2)
        self.of_another = self._create("bills", 2)

    def _create(self, name: str, *broker_ids: int) -> TopicId:
        replicas = ReplicaAssignment(partition=0, broker_ids=tuple(map(BrokerId, broker_ids)))
        self.do(create_topics(TopicSpec(name=name, assignments=(replicas,))))
        return self.image.topics[name].topic_id

    @property
    def image(self) -> ClusterImage:
        return self.machine.image

    def _start(self, number: int, directories: tuple[bytes, ...]) -> int:
        epoch = self.offset
        self.do(
            RegisterBroker(
                broker_id=BrokerId(number),
                incarnation_id=bytes([number]) * 16,
                endpoints=(),
                log_directories=directories,
            )
        )
        self.do(UnfenceBroker(broker_id=BrokerId(number), broker_epoch=epoch))
        return epoch

    def do(self, command: object) -> object:
        decision = self.machine.decide(command, 0, next_offset=self.offset)  # type: ignore[arg-type]
        self.machine.apply_all(decision.records)
        self.offset += len(decision.records)
        return decision.response

    def assign(self, *assignments: tuple[bytes, TopicId, int], epoch: int | None = None) -> list[ErrorCode]:
        answer = self.do(
            AssignDirectories(
                broker_id=BrokerId(1),
                broker_epoch=self.epochs[0] if epoch is None else epoch,
                assignments=tuple(
                    DirectoryAssignment(directory_id=directory_id, topic_id=topic_id, partition=number)
                    for directory_id, topic_id, number in assignments
                ),
            )
        )
        assert isinstance(answer, DirectoriesAssigned)
        return [ErrorCode.NONE if error is None else error.code for error in answer.errors]


def test_an_assignment_changes_the_directory_of_that_replica_alone() -> None:
    bench = DirectoryAssignmentsBench()
    before = bench.image.partition("orders", 0)
    assert before is not None
    assert before.directories[0] == UNASSIGNED_DIRECTORY  # it has two to choose from
    assert bench.assign((SECOND, bench.topic_id, 0)) == [ErrorCode.NONE]
    after = bench.image.partition("orders", 0)
    assert after is not None
    assert after.directories == (SECOND, before.directories[1])
    assert (after.leader, after.leader_epoch, after.in_sync_replicas) == (
        before.leader,
        before.leader_epoch,
        before.in_sync_replicas,
    )
    assert after.partition_epoch == before.partition_epoch + 1


def test_saying_it_again_writes_nothing() -> None:
    bench = DirectoryAssignmentsBench()
    bench.assign((SECOND, bench.topic_id, 0))
    offset = bench.offset
    assert bench.assign((SECOND, bench.topic_id, 0)) == [ErrorCode.NONE]
    assert bench.offset == offset


def test_of_two_places_for_one_replica_the_later_holds() -> None:
    bench = DirectoryAssignmentsBench()
    there = bench.topic_id
    assert bench.assign((FIRST, there, 0), (SECOND, there, 0)) == [ErrorCode.NONE, ErrorCode.NONE]
    state = bench.image.partition("orders", 0)
    assert state is not None
    assert state.directories[0] == SECOND


def test_missing_partitions_and_brokers_without_a_replica_are_refused_one_by_one() -> None:
    bench = DirectoryAssignmentsBench()
    there = bench.topic_id
    codes = bench.assign(
        (FIRST, TopicId(bytes(16)), 0), (FIRST, there, 9), (FIRST, bench.of_another, 0), (FIRST, there, 0)
    )
    assert codes == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NONE,
    ]


def test_an_earlier_registration_has_no_say() -> None:
    bench = DirectoryAssignmentsBench()
    with pytest.raises(KafkaError) as refusal:
        bench.assign((FIRST, bench.topic_id, 0), epoch=bench.epochs[0] - 1)
    assert refusal.value.code is ErrorCode.STALE_BROKER_EPOCH
