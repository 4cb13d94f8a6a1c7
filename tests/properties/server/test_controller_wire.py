"""Commands of brokers and controllers survive Kafka's bytes, in every version that says all of them."""

from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.metadata.broker_commands import (
    BrokerHeartbeat,
    BrokerRegistered,
    BrokerStanding,
    RegisterBroker,
    RegisterController,
)
from tailrace.metadata.commands import (
    AlterPartition,
    InSyncChange,
    InSyncOutcome,
    InSyncReplica,
    LeaveReason,
    PartitionsAltered,
    ReplicaAssignment,
    TopicCreated,
    TopicRefused,
    TopicSpec,
)
from tailrace.metadata.image import EMPTY_IMAGE, Endpoint, SupportedFeature, TopicImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState
from tailrace.protocol.messages import registrations, replicas
from tailrace.protocol.messages.topics import CreatableTopicResult, CreateTopicsResponse
from tailrace.protocol.schema import decode, encode_bytes, replace
from tailrace.server.controller_link import controller_wire as wire
from tailrace.server.controller_link import replicas_wire
from tailrace.server.controller_link.controller_wire import CREATE_TOPICS_VERSION, create_topics_request, topics_created
from testkit.quorum.controller_commands import create_topics

T = TypeVar("T")

quick = settings(max_examples=60, deadline=None, database=None)

broker_ids = st.integers(0, 2**31 - 1).map(BrokerId)
epochs = st.integers(-1, 2**63 - 1)
uuids = st.binary(min_size=16, max_size=16)
topic_ids = uuids.map(TopicId)
texts = st.text(st.characters(codec="utf-8"), max_size=8)
int16s, int32s = st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1)
endpoints = st.lists(
    st.builds(Endpoint, listener_name=texts, host=texts, port=st.integers(0, 65535), security_protocol=int16s),
    max_size=3,
    unique_by=lambda endpoint: endpoint.listener_name,
).map(tuple)
features = st.lists(st.builds(SupportedFeature, texts, int16s, int16s), max_size=3).map(tuple)


def over_the_wire(message: T, version: int) -> T:
    return decode(type(message), version, encode_bytes(message, version))


@quick
@given(
    st.builds(
        RegisterBroker,
        broker_id=broker_ids,
        incarnation_id=uuids,
        endpoints=endpoints,
        rack=st.none() | texts,
        log_directories=st.lists(uuids, max_size=3).map(tuple),
        features=features,
        previous_broker_epoch=epochs,
    ),
    st.sampled_from([3, 4]),
)
def test_a_registration(command: RegisterBroker, version: int) -> None:
    request = over_the_wire(wire.registration_request(command, "a-cluster"), version)
    assert request.cluster_id == "a-cluster"
    assert wire.registration_command(request) == command


@quick
@given(
    st.builds(
        BrokerHeartbeat,
        broker_id=broker_ids,
        broker_epoch=epochs,
        metadata_offset=epochs,
        wants_fence=st.booleans(),
        wants_shutdown=st.booleans(),
    ),
    st.builds(BrokerStanding, is_caught_up=st.booleans(), is_fenced=st.booleans(), should_shut_down=st.booleans()),
    st.sampled_from([0, 1]),
)
def test_a_heartbeat_and_its_answer(command: BrokerHeartbeat, standing: BrokerStanding, version: int) -> None:
    assert wire.heartbeat_command(over_the_wire(wire.heartbeat_request(command), version)) == command
    assert wire.standing(over_the_wire(wire.standing_response(standing), version)) == standing


@quick
@given(
    st.builds(
        RegisterController, controller_id=broker_ids, incarnation_id=uuids, endpoints=endpoints, features=features
    )
)
def test_a_controllers_registration(command: RegisterController) -> None:
    request = over_the_wire(wire.controller_registration_request(command), 0)
    assert wire.controller_registration_command(request) == command


changes = st.builds(
    InSyncChange,
    topic_id=st.sampled_from([TopicId(b"the first topic."), TopicId(b"the other topic.")]),
    partition=st.integers(0, 3),
    leader_epoch=int32s,
    partition_epoch=int32s,
    in_sync_replicas=st.lists(st.builds(InSyncReplica, broker_id=broker_ids, broker_epoch=epochs), max_size=3).map(
        tuple
    ),
    is_recovering=st.booleans(),
    leaving=st.none() | st.sampled_from(LeaveReason),
)
proposals = st.builds(
    AlterPartition,
    broker_id=broker_ids,
    broker_epoch=epochs,
    changes=st.lists(changes, max_size=5, unique_by=lambda change: (change.topic_id, change.partition)).map(tuple),
)


def by_topic(command: AlterPartition) -> list[InSyncChange]:
    """In the order of the wire, which has each topic once."""
    topics = list(dict.fromkeys(change.topic_id for change in command.changes))
    return sorted(command.changes, key=lambda change: topics.index(change.topic_id))


@quick
@given(proposals)
def test_proposals_of_in_sync_replicas(command: AlterPartition) -> None:
    request = over_the_wire(replicas_wire.alter_partition_request(command), 3)
    assert request.wants_end_offset is not any(change.leaving for change in command.changes)
    read = replicas_wire.alter_partition_command(request, 3)
    assert (read.broker_id, read.broker_epoch) == (command.broker_id, command.broker_epoch)
    assert list(read.changes) == by_topic(command)


@quick
@given(proposals)
def test_an_older_version_has_the_replicas_without_their_epochs(command: AlterPartition) -> None:
    read = replicas_wire.alter_partition_command(over_the_wire(replicas_wire.alter_partition_request(command), 2), 2)
    told = [[replica.broker_id for replica in change.in_sync_replicas] for change in read.changes]
    assert told == [[replica.broker_id for replica in change.in_sync_replicas] for change in by_topic(command)]
    assert all(replica.broker_epoch == -1 for change in read.changes for replica in change.in_sync_replicas)


def state_of(change: InSyncChange) -> PartitionState:
    return PartitionState(
        topic_id=change.topic_id,
        replicas=(BrokerId(1), BrokerId(2)),
        in_sync_replicas=(BrokerId(1),),
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(change.leader_epoch),
        partition_epoch=change.partition_epoch,
        is_recovering=change.is_recovering,
    )


@quick
@given(proposals, st.sets(st.integers(0, 4)), st.integers(-1, 2**63 - 1))
def test_outcomes_come_back_in_the_order_of_the_proposals(
    command: AlterPartition, refused: set[int], end_offset: int
) -> None:
    def result(place: int, change: InSyncChange) -> PartitionState | KafkaError:
        return KafkaError(ErrorCode.INELIGIBLE_REPLICA) if place in refused else state_of(change)

    outcomes = tuple(
        InSyncOutcome(topic_id=change.topic_id, partition=change.partition, result=result(place, change))
        for place, change in enumerate(command.changes)
    )
    response = over_the_wire(replicas_wire.altered_response(PartitionsAltered(outcomes=outcomes), end_offset), 3)
    assert response.metadata_end_offset == end_offset
    names = {change.topic_id: change.topic_id.decode() for change in command.changes}
    image = EMPTY_IMAGE.__class__(
        topics={
            name: TopicImage(
                name=name,
                topic_id=topic_id,
                partitions={
                    change.partition: state_of(change) for change in command.changes if change.topic_id == topic_id
                },
            )
            for topic_id, name in names.items()
        },
        topic_names=names,
    )
    read = replicas_wire.partitions_altered(command, response, image)
    assert isinstance(read, PartitionsAltered)
    for place, (outcome, change) in enumerate(zip(read.outcomes, command.changes, strict=True)):
        assert (outcome.topic_id, outcome.partition) == (change.topic_id, change.partition)
        if place in refused:
            assert isinstance(outcome.result, KafkaError)
            assert outcome.result.code is ErrorCode.INELIGIBLE_REPLICA
        else:
            assert outcome.result == state_of(change)


def test_a_partition_that_the_answer_leaves_out_or_that_is_gone_has_an_error() -> None:
    change = InSyncChange(
        topic_id=TopicId(b"the first topic."), partition=0, leader_epoch=1, partition_epoch=1, in_sync_replicas=()
    )
    command = AlterPartition(broker_id=BrokerId(1), broker_epoch=1, changes=(change,))
    outcome = InSyncOutcome(topic_id=change.topic_id, partition=0, result=state_of(change))
    told = replicas_wire.altered_response(PartitionsAltered(outcomes=(outcome,)), -1)
    for response, code in (
        (replicas.AlterPartitionResponse(topics=()), ErrorCode.UNKNOWN_SERVER_ERROR),
        (told, ErrorCode.UNKNOWN_TOPIC_ID),
    ):
        read = replicas_wire.partitions_altered(command, response, EMPTY_IMAGE)
        assert isinstance(read, PartitionsAltered)
        assert isinstance(read.outcomes[0].result, KafkaError)
        assert read.outcomes[0].result.code is code


@quick
@given(
    st.lists(
        st.builds(
            TopicSpec,
            name=texts,
            num_partitions=st.integers(-1, 100),
            replication_factor=st.integers(-1, 5),
            assignments=st.lists(
                st.builds(ReplicaAssignment, partition=int32s, broker_ids=st.lists(broker_ids, max_size=3).map(tuple)),
                max_size=2,
            ).map(tuple),
            configs=st.lists(st.tuples(texts, st.none() | texts), max_size=2).map(tuple),
        ),
        max_size=3,
    ).map(tuple)
)
def test_topics_to_create(topics: tuple[TopicSpec, ...]) -> None:
    request = over_the_wire(create_topics_request(create_topics(*topics)), CREATE_TOPICS_VERSION)
    assert [(topic.name, topic.num_partitions, topic.replication_factor) for topic in request.topics] == [
        (topic.name, topic.num_partitions, topic.replication_factor) for topic in topics
    ]
    assert [tuple((config.name, config.value) for config in topic.configs) for topic in request.topics] == [
        topic.configs for topic in topics
    ]
    assert [
        tuple((each.partition_index, each.broker_ids) for each in topic.assignments) for topic in request.topics
    ] == [tuple((each.partition, each.broker_ids) for each in topic.assignments) for topic in topics]


def test_the_results_of_created_topics() -> None:
    command = create_topics(TopicSpec(name="orders", configs=(("retention.ms", "1"),)), TopicSpec(name="bills"))
    results = (
        CreatableTopicResult(
            name="orders", topic_id=b"the first topic.", error_message=None, num_partitions=3, replication_factor=2
        ),
        CreatableTopicResult(name="bills", error_code=ErrorCode.TOPIC_ALREADY_EXISTS, error_message="it is there"),
        CreatableTopicResult(name="odd", error_code=9999, error_message=None),
    )
    orders, bills, odd = topics_created(command, CreateTopicsResponse(topics=results)).results
    assert orders == TopicCreated(
        name="orders",
        topic_id=TopicId(b"the first topic."),
        num_partitions=3,
        replication_factor=2,
        overrides={"retention.ms": "1"},
    )
    assert isinstance(bills, TopicRefused)
    assert isinstance(odd, TopicRefused)
    assert (bills.error.code, bills.error.detail) == (ErrorCode.TOPIC_ALREADY_EXISTS, "it is there")
    assert odd.error.code is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("read", "response"),
    [
        (wire.registered, registrations.BrokerRegistrationResponse(error_code=77)),
        (wire.standing, registrations.BrokerHeartbeatResponse(error_code=77, should_shut_down=False)),
    ],
)
def test_a_refusal_is_a_refusal_and_an_unknown_code_a_fault(read: Any, response: Any) -> None:
    assert read(response).code is ErrorCode.STALE_BROKER_EPOCH
    assert read(replace(response, error_code=9999)).code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_registration_says_its_epoch() -> None:
    response = registrations.BrokerRegistrationResponse(broker_epoch=12)
    assert wire.registered(response) == BrokerRegistered(broker_epoch=12)
