"""Messages of brokers and controllers to the active controller, in Kafka's form: to the wire and back.

`ControllerChannel` sends these requests, and the handlers of `controller_peers` receive the requests. A request is made
with the fields of the newest version; encoding leaves out the fields that an older version does not have. The form of
values from outside is checked here; the controller checks their meaning.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tailrace.metadata.broker_commands import (
    AllocateProducerIds,
    BrokerHeartbeat,
    BrokerRegistered,
    BrokerStanding,
    ProducerIdBlock,
    RegisterBroker,
    RegisterController,
)
from tailrace.metadata.commands import CreateTopics, TopicCreated, TopicRefused, TopicsCreated, TopicSpec
from tailrace.metadata.image import Endpoint, SupportedFeature
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, ProducerId, TopicId
from tailrace.protocol.messages import registrations, transactions
from tailrace.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

# Brokers and controllers


def registration_request(command: RegisterBroker, cluster_id: str) -> registrations.BrokerRegistrationRequest:
    return registrations.BrokerRegistrationRequest(
        broker_id=command.broker_id,
        cluster_id=cluster_id,
        incarnation_id=command.incarnation_id,
        listeners=_listeners(command.endpoints),
        features=_features(command.features),
        rack=command.rack,
        log_dirs=command.log_directories,
        previous_broker_epoch=command.previous_broker_epoch,
        secret=command.secret,
        directory_secret=command.directory_secret,
    )


def registration_command(request: registrations.BrokerRegistrationRequest) -> RegisterBroker:
    return RegisterBroker(
        broker_id=BrokerId(request.broker_id),
        incarnation_id=request.incarnation_id,
        endpoints=endpoints(request.listeners),
        rack=request.rack,
        log_directories=request.log_dirs,
        features=supported_features(request.features),
        previous_broker_epoch=request.previous_broker_epoch,
        secret=request.secret,
        directory_secret=request.directory_secret,
    )


def registered(response: registrations.BrokerRegistrationResponse) -> BrokerRegistered | KafkaError:
    error = refusal(response.error_code, "the registration")
    return error or BrokerRegistered(broker_epoch=response.broker_epoch)


def heartbeat_request(command: BrokerHeartbeat) -> registrations.BrokerHeartbeatRequest:
    return registrations.BrokerHeartbeatRequest(
        broker_id=command.broker_id,
        broker_epoch=command.broker_epoch,
        current_metadata_offset=command.metadata_offset,
        want_fence=command.wants_fence,
        want_shut_down=command.wants_shutdown,
        secret=command.secret,
    )


def heartbeat_command(request: registrations.BrokerHeartbeatRequest) -> BrokerHeartbeat:
    return BrokerHeartbeat(
        broker_id=BrokerId(request.broker_id),
        broker_epoch=request.broker_epoch,
        metadata_offset=request.current_metadata_offset,
        wants_fence=request.want_fence,
        wants_shutdown=request.want_shut_down,
        secret=request.secret,
    )


def standing_response(standing: BrokerStanding) -> registrations.BrokerHeartbeatResponse:
    return registrations.BrokerHeartbeatResponse(
        is_caught_up=standing.is_caught_up,
        is_fenced=standing.is_fenced,
        should_shut_down=standing.should_shut_down,
    )


def standing(response: registrations.BrokerHeartbeatResponse) -> BrokerStanding | KafkaError:
    return refusal(response.error_code, "the heartbeat") or BrokerStanding(
        is_caught_up=response.is_caught_up,
        is_fenced=response.is_fenced,
        should_shut_down=response.should_shut_down,
    )


def controller_registration_request(command: RegisterController) -> registrations.ControllerRegistrationRequest:
    return registrations.ControllerRegistrationRequest(
        controller_id=command.controller_id,
        incarnation_id=command.incarnation_id,
        zk_migration_ready=False,
        listeners=_listeners(command.endpoints),
        features=_features(command.features),
        secret=command.secret,
    )


def controller_registration_command(request: registrations.ControllerRegistrationRequest) -> RegisterController:
    return RegisterController(
        controller_id=BrokerId(request.controller_id),
        incarnation_id=request.incarnation_id,
        endpoints=endpoints(request.listeners),
        features=supported_features(request.features),
        secret=request.secret,
    )


def _listeners(found: Iterable[Endpoint]) -> tuple[registrations.RegisteredListener, ...]:
    return tuple(
        registrations.RegisteredListener(
            name=endpoint.listener_name,
            host=endpoint.host,
            port=endpoint.port,
            security_protocol=endpoint.security_protocol,
        )
        for endpoint in found
    )


def endpoints(listeners: Sequence[registrations.RegisteredListener]) -> tuple[Endpoint, ...]:
    """Raises KafkaError INVALID_REGISTRATION if two addresses have one name."""
    names = [listener.name for listener in listeners]
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, f"two listeners have one name: {names}")
    return tuple(
        Endpoint(
            listener_name=listener.name,
            host=listener.host,
            port=listener.port,
            security_protocol=listener.security_protocol,
        )
        for listener in listeners
    )


def _features(found: Iterable[SupportedFeature]) -> tuple[registrations.RegisteredFeature, ...]:
    return tuple(
        registrations.RegisteredFeature(name=name, min_supported_version=first, max_supported_version=last)
        for name, first, last in found
    )


def supported_features(found: Iterable[registrations.RegisteredFeature]) -> tuple[SupportedFeature, ...]:
    return tuple(
        SupportedFeature(feature.name, feature.min_supported_version, feature.max_supported_version)
        for feature in found
    )


# Producer ids


def producer_ids_request(command: AllocateProducerIds) -> transactions.AllocateProducerIdsRequest:
    return transactions.AllocateProducerIdsRequest(
        broker_id=command.broker_id, broker_epoch=command.broker_epoch, secret=command.secret
    )


def producer_ids_command(request: transactions.AllocateProducerIdsRequest) -> AllocateProducerIds:
    return AllocateProducerIds(
        broker_id=BrokerId(request.broker_id), broker_epoch=request.broker_epoch, secret=request.secret
    )


def producer_id_block(response: transactions.AllocateProducerIdsResponse) -> ProducerIdBlock | KafkaError:
    error = refusal(response.error_code, "the producer ids")
    if error is None and (response.producer_id_len <= 0 or response.producer_id_start < 0):
        error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no block of producer ids: {response}")
    return error or ProducerIdBlock(first=ProducerId(response.producer_id_start), size=response.producer_id_len)


def refusal(code: int, what: str, *, message: str | None = None) -> KafkaError | None:
    """The error of an answer, with its `message`, if any. An unknown code becomes UNKNOWN_SERVER_ERROR."""
    if code == ErrorCode.NONE:
        return None
    try:
        known = ErrorCode(code)
    except ValueError:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the controller refuses {what} with error {code}")
    return KafkaError(known, message or f"the controller refuses {what}")


CREATE_TOPICS_VERSION: Final = 7
_TIMEOUT_MS: Final = 30_000


def create_topics_request(command: CreateTopics) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=tuple(map(_creatable, command.topics)), timeout_ms=_TIMEOUT_MS, validate_only=command.validate_only
    )


def _creatable(topic: TopicSpec) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=assignment.partition, broker_ids=assignment.broker_ids)
            for assignment in topic.assignments
        ),
        configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in topic.configs),
    )


def topics_created(command: CreateTopics, response: CreateTopicsResponse) -> TopicsCreated:
    """The results by name. The settings of a new topic come from the command."""
    configs = {topic.name: topic.configs for topic in command.topics}

    def result(created: CreatableTopicResult) -> TopicCreated | TopicRefused:
        if created.error_code:
            error = KafkaError(_code(created.error_code), created.error_message or "")
            return TopicRefused(name=created.name, error=error)
        return TopicCreated(
            name=created.name,
            topic_id=TopicId(created.topic_id),
            num_partitions=created.num_partitions,
            replication_factor=created.replication_factor,
            overrides={name: value for name, value in configs.get(created.name, ()) if value is not None},
        )

    return TopicsCreated(results=tuple(map(result, response.topics)))


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
