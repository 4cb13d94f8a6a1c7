"""The controller as a table: given these records, this command gives those records and that answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tailrace.metadata.commands import (
    ConfigsAltered,
    ControllerCommand,
    ControllerResponse,
    CreateTopics,
    PartitionsCreated,
    ReplicaAssignment,
    TopicCreated,
    TopicDeletion,
    TopicRefused,
    TopicsCreated,
    TopicsDeleted,
    TopicSpec,
)
from tailrace.metadata.deciding.topics import TopicRules
from tailrace.metadata.image import ConfigResource, ResourceType
from tailrace.metadata.records.brokers import RegisterBrokerRecord, UnfenceBrokerRecord
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.topics import UNASSIGNED_DIRECTORY, ConfigRecord, PartitionRecord, TopicRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId
from testkit.quorum.controller_commands import create_topics
from testkit.quorum.controllers import controller_machine, topic_rules
from testkit.quorum.metadata_records import new_broker, new_partition

NEXT_OFFSET = 77


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


def random_id(number: int) -> TopicId:
    return TopicId((2**64 + number).to_bytes(16, "big"))


def registered(broker_id: int, *, directories: tuple[bytes, ...] = (), rack: str | None = None) -> RegisterBrokerRecord:
    return new_broker(broker_id, rack=rack, log_dirs=directories)


def alive(broker_id: int, *, directories: tuple[bytes, ...] = ()) -> list[MetadataRecord]:
    return [registered(broker_id, directories=directories), UnfenceBrokerRecord(id=broker_id, epoch=broker_id)]


def partition(
    topic_id: bytes, number: int, *replicas: int, isr: tuple[int, ...] | None = None, directory: bytes | None = None
) -> PartitionRecord:
    directories = (directory or UNASSIGNED_DIRECTORY,) * len(replicas)
    return new_partition(topic_id, number, *replicas, isr=isr or replicas, directories=directories)


ORDERS = random_id(1000)
SET_RETENTION = ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="5")
ONE = alive(1)
THREE = [*alive(1), *alive(2), *alive(3)]
WITH_ORDERS = [*ONE, TopicRecord(name="orders", topic_id=ORDERS), partition(ORDERS, 0, 1)]
DIRECTORY = b"a log directory!"


def create(*topics: TopicSpec, validate_only: bool = False) -> CreateTopics:
    return create_topics(*topics, validate_only=validate_only)


def assigned(*replicas: tuple[int, ...]) -> tuple[ReplicaAssignment, ...]:
    return tuple(ReplicaAssignment(partition=n, broker_ids=ids(*wanted)) for n, wanted in enumerate(replicas))


def created(
    name: str, number: int, *, partitions: int = 1, factor: int = 1, overrides: dict[str, str] | None = None
) -> TopicCreated:
    return TopicCreated(
        name=name,
        topic_id=random_id(number),
        num_partitions=partitions,
        replication_factor=factor,
        overrides=overrides or {},
    )


DEFAULT_RULES = topic_rules()


@dataclass(frozen=True, kw_only=True)
class ControllerScenario:
    """`error` stands for a refusal of the whole command, or of the first topic in the answer."""

    name: str
    given: Sequence[MetadataRecord] = ()
    rules: TopicRules = DEFAULT_RULES
    founding_settings: Mapping[str, str] = field(default_factory=dict)
    when: ControllerCommand
    then: Sequence[MetadataRecord] = ()
    response: ControllerResponse | None = None
    error: ErrorCode | None = None


def refused(name: str, error: ErrorCode, *topics: TopicSpec, **given: Any) -> ControllerScenario:
    return ControllerScenario(name=name, when=create(*topics), error=error, **{"given": ONE, **given})


OF_ORDERS = ConfigResource(ResourceType.TOPIC, "orders")
ALL_BROKERS = ConfigResource(ResourceType.BROKER, "")


def setting(name: str, value: str | None, of: ConfigResource = OF_ORDERS) -> ConfigRecord:
    return ConfigRecord(resource_type=of.type, resource_name=of.name, name=name, value=value)


def first_error(response: ControllerResponse) -> ErrorCode | None:
    if isinstance(response, ConfigsAltered):
        return next((error.code for error in response.errors if error is not None), None)
    if isinstance(response, PartitionsCreated):
        return next((outcome.error.code for outcome in response.outcomes if outcome.error is not None), None)
    assert isinstance(response, (TopicsCreated, TopicsDeleted))
    for result in response.results:
        if isinstance(result, TopicRefused):
            return result.error.code
        if isinstance(result, TopicDeletion) and result.error is not None:
            return result.error.code
    return None


def check_decision(scenario: ControllerScenario) -> None:
    """The decision of a controller with these records is the decision that the scenario states."""
    machine = controller_machine(rules=scenario.rules, founding_settings=scenario.founding_settings)
    for record in scenario.given:
        machine.apply(record)
    before = machine.image
    try:
        decision = machine.decide(scenario.when, 0, next_offset=NEXT_OFFSET)
    except KafkaError as refusal:
        assert refusal.code is scenario.error
        assert refusal.detail
        assert not scenario.then
        return
    assert machine.image is before, "decide changes nothing"
    assert list(decision.records) == list(scenario.then)
    if scenario.error is not None:
        assert first_error(decision.response) is scenario.error
    if scenario.response is not None:
        assert decision.response == scenario.response
    machine.apply_all(decision.records)


def table(*scenarios: ControllerScenario) -> pytest.MarkDecorator:
    """A case for each scenario, by its name, which is of this scenario alone."""
    names = [scenario.name for scenario in scenarios]
    assert len(set(names)) == len(names)
    return pytest.mark.parametrize("scenario", scenarios, ids=names)
