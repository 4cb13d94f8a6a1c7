"""A controller on a table with a cluster of three brokers, driven by commands alone."""

from itertools import count
from typing import Any

from tailrace.metadata.broker_commands import (
    BrokerHeartbeat,
    BrokerRegistered,
    BrokerStanding,
    FenceBroker,
    FinalizeMetadataVersion,
    RegisterBroker,
)
from tailrace.metadata.commands import (
    AlterPartition,
    AlterReassignments,
    ConfigChange,
    ConfigOperation,
    ConfigsAltered,
    ControllerCommand,
    ElectLeaders,
    InSyncChange,
    InSyncReplica,
    LeadersElected,
    PartitionsAltered,
    Reassignment,
    ReassignmentsAltered,
    ReplicaAssignment,
    ResourceChanges,
    TopicSpec,
)
from tailrace.metadata.image import ConfigResource, ResourceType
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import ElectionType, PartitionState, TopicPartition
from testkit.quorum.controller_commands import alter_configs, create_topics
from testkit.quorum.controllers import controller_machine

SESSION_MS = 1000
ORDERS = TopicPartition("orders", 0)
TOPIC_ORDERS = ConfigResource(ResourceType.TOPIC, "orders")
BROKER_1 = ConfigResource(ResourceType.BROKER, "1")
MIN_IN_SYNC = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"
FIRST_DIRECTORY, SECOND_DIRECTORY, THIRD_DIRECTORY = (bytes([number]) * 16 for number in (1, 2, 3))


class LeadershipCluster:
    """A controller, and the time that goes by for the controller."""

    def __init__(self, brokers: int = 3) -> None:
        self.machine = controller_machine(broker_session_timeout_ms=SESSION_MS)
        self.now_ms = 0
        self.offset = 0
        self.others_append = 0
        """The number of control records between the next decision and its records."""
        self.incarnations = count(1)
        self.do(FinalizeMetadataVersion())
        for number in range(1, brokers + 1):
            self.start(number)

    def do(self, command: ControllerCommand) -> Any:
        decision = self.machine.decide(command, self.now_ms, next_offset=self.offset)
        if self.others_append:
            self.offset += self.others_append
            self.others_append = 0
            decision = self.machine.at_offset(decision, self.offset)
        self.machine.apply_all(decision.records)
        self.offset += len(decision.records)
        return decision.response

    def epoch(self, number: int) -> int:
        return self.machine.image.brokers[BrokerId(number)].broker_epoch

    def register(self, number: int, *, clean: bool = True, directories: tuple[bytes, ...] = ()) -> int:
        known = self.machine.image.brokers.get(BrokerId(number))
        command = RegisterBroker(
            broker_id=BrokerId(number),
            incarnation_id=next(self.incarnations).to_bytes(16, "big"),
            endpoints=(),
            log_directories=directories,
            previous_broker_epoch=known.broker_epoch if clean and known else -1,
        )
        response = self.do(command)
        assert isinstance(response, BrokerRegistered)
        return response.broker_epoch

    def start(self, number: int, *, clean: bool = True, directories: tuple[bytes, ...] = ()) -> None:
        self.register(number, clean=clean, directories=directories)
        assert not self.beat(number).is_fenced

    def beat(self, number: int, *, applied: int | None = None, **wishes: Any) -> BrokerStanding:
        offset = self.offset if applied is None else applied
        command = BrokerHeartbeat(
            broker_id=BrokerId(number), broker_epoch=self.epoch(number), metadata_offset=offset, **wishes
        )
        response = self.do(command)
        assert isinstance(response, BrokerStanding)
        return response

    def fence(self, number: int) -> None:
        self.do(FenceBroker(broker_id=BrokerId(number), broker_epoch=self.epoch(number)))

    def restart(self, number: int, *, clean: bool = True) -> None:
        self.fence(number)
        self.start(number, clean=clean)

    def create(self, *replicas: int, min_in_sync: int = 1, unclean: bool = False, partitions: int = 1) -> None:
        assignments = tuple(
            ReplicaAssignment(partition=number, broker_ids=ids(*replicas)) for number in range(partitions)
        )
        settings = {"min.insync.replicas": str(min_in_sync), "unclean.leader.election.enable": str(unclean).lower()}
        topic = TopicSpec(name="orders", assignments=assignments, configs=tuple(settings.items()))
        self.do(create_topics(topic))

    def set(self, name: str, value: str | None, of: ConfigResource = TOPIC_ORDERS) -> ErrorCode | None:
        """Give a setting, or take it back with None."""
        operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
        change = ConfigChange(name=name, operation=operation, value=value)
        response = self.do(alter_configs(ResourceChanges(resource=of, changes=(change,))))
        assert isinstance(response, ConfigsAltered)
        (error,) = response.errors
        return None if error is None else error.code

    @property
    def state(self) -> PartitionState:
        state = self.machine.image.partition(*ORDERS)
        assert state is not None
        return state

    def propose(self, leader: int, *in_sync: int, **differences: Any) -> PartitionState | KafkaError:
        epochs = differences.pop("broker_epochs", {})
        proposed: dict[str, Any] = {
            "topic_id": self.state.topic_id,
            "partition": 0,
            "leader_epoch": self.state.leader_epoch,
            "partition_epoch": self.state.partition_epoch,
            "in_sync_replicas": tuple(
                InSyncReplica(broker_id=BrokerId(number), broker_epoch=epochs.get(number, -1)) for number in in_sync
            ),
        }
        response = self.do(
            AlterPartition(
                broker_id=BrokerId(leader),
                broker_epoch=self.epoch(leader),
                changes=(InSyncChange(**(proposed | differences)),),
            )
        )
        assert isinstance(response, PartitionsAltered)
        return response.outcomes[0].result

    def elect(
        self, kind: ElectionType, *partitions: TopicPartition, desired: int | None = None
    ) -> dict[TopicPartition, ErrorCode | None]:
        """`desired`: this replica is to lead all the partitions."""
        leaders = {} if desired is None else dict.fromkeys(partitions, BrokerId(desired))
        response = self.do(ElectLeaders(type=kind, partitions=partitions or None, desired_leaders=leaders))
        assert isinstance(response, LeadersElected)
        return {o.topic_partition: o.error.code if o.error else None for o in response.outcomes}

    def move(self, *replicas: int, cancel: bool = False, **options: bool) -> ErrorCode | None:
        wanted = Reassignment(topic_partition=ORDERS, replicas=None if cancel else ids(*replicas))
        response = self.do(AlterReassignments(reassignments=(wanted,), **options))
        assert isinstance(response, ReassignmentsAltered)
        error = response.outcomes[0].error
        return error.code if error else None


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


def led(state: PartitionState) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Leader, in-sync replicas, eligible leaders."""
    return state.leader, state.in_sync_replicas, state.eligible_leader_replicas


def code(result: PartitionState | KafkaError) -> ErrorCode:
    assert isinstance(result, KafkaError)
    assert result.detail
    return result.code
