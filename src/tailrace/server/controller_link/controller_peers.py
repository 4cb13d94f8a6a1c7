"""Requests of brokers and controllers to the active controller (KIP-631, KIP-497, KIP-730, KIP-858, KIP-919).

BrokerRegistration (62): v1 a broker that comes from ZooKeeper, which is refused; v2 log directories; v3 the previous
epoch; v4 features from level 0. BrokerHeartbeat (63): v1 failed directories, which are ignored, since a broker stops
when its directory fails. AlterPartition (56): v2 topic ids, v3 broker epochs. AllocateProducerIds (67),
ControllerRegistration (70), AssignReplicasToDirs (73): one version. These APIs are served on the controllers' listener
only.
"""

from functools import partial
from typing import Final

from tailrace.metadata.broker_commands import BrokerRegistered, ProducerIdBlock
from tailrace.metadata.commands import AssignDirectories, DirectoriesAssigned, DirectoryAssignment, PartitionsAltered
from tailrace.metadata.senders import is_from_registered_broker
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.protocol.messages import log_dirs, registrations, replicas, transactions
from tailrace.server.context import RequestContext
from tailrace.server.controller_link import controller_wire as wire
from tailrace.server.controller_link import replicas_wire
from tailrace.server.ports import Controller, ServerConnection
from tailrace.server.quorum.controller import QuorumController
from tailrace.server.quorum.raft_rpcs import MAX_LISTENERS

_FIRST_WITH_DIRECTORIES: Final = 2
_RESERVED_IDS: Final = 100
"""Directory ids below this value do not name a directory: they mean unassigned, lost and the like."""


class BrokerRegistrationHandler:
    """Registers a broker that has started."""

    def __init__(self, *, controller: Controller, cluster_id: str) -> None:
        self._controller = controller
        self._cluster_id = cluster_id

    def handle(self, request: registrations.BrokerRegistrationRequest, context: RequestContext) -> None:
        """Raises KafkaError INCONSISTENT_CLUSTER_ID, INVALID_REGISTRATION, BROKER_ID_NOT_REGISTERED."""
        _check_cluster(request, self._cluster_id)
        _check_registration(request, context.api_version)
        self._controller.submit(wire.registration_command(request), context.answering(request, _registered))


def _registered(answer: BrokerRegistered) -> registrations.BrokerRegistrationResponse:
    return registrations.BrokerRegistrationResponse(broker_epoch=answer.broker_epoch)


def _check_cluster(request: registrations.BrokerRegistrationRequest, cluster_id: str) -> None:
    if request.cluster_id != cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"this is cluster {cluster_id}, broker {request.broker_id} belongs to {request.cluster_id}",
        )


def _check_registration(request: registrations.BrokerRegistrationRequest, version: int) -> None:
    broker = f"broker {request.broker_id}"
    if request.is_migrating_zk_broker:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"{broker} comes from ZooKeeper, which is not served")
    if request.broker_id < 0:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, f"{broker}: ids are not negative")
    if not request.listeners:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, f"{broker} listens nowhere")
    if max(len(request.listeners), len(request.features), len(request.log_dirs)) > MAX_LISTENERS:
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION, f"{broker} has more than {MAX_LISTENERS} listeners, features or directories"
        )
    if version >= _FIRST_WITH_DIRECTORIES:
        _check_directories(broker, request.log_dirs)


def _check_directories(broker: str, found: tuple[bytes, ...]) -> None:
    if not found:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, f"{broker} names no log directory")
    if len(set(found)) < len(found) or any(int.from_bytes(directory, "big") < _RESERVED_IDS for directory in found):
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, f"{broker}: a directory twice, or with a reserved id")


class BrokerHeartbeatHandler:
    """Receives the heartbeats of brokers. When the connection of a broker closes, its session is shortened: the process
    has probably ended."""

    def __init__(self, *, controller: QuorumController) -> None:
        self._controller = controller
        self._heard: dict[ServerConnection, BrokerId] = {}
        """The broker of the latest heartbeat on each connection."""

    def handle(self, request: registrations.BrokerHeartbeatRequest, context: RequestContext) -> None:
        command = wire.heartbeat_command(request)
        if is_from_registered_broker(self._controller.image, command):  # another sender's connection proves nothing
            self._note(context.connection, command.broker_id)
        self._controller.submit(command, context.answering(request, wire.standing_response))

    def _note(self, connection: ServerConnection, broker_id: BrokerId) -> None:
        if connection not in self._heard:
            connection.on_close(lambda: self._closed(connection))
        self._heard[connection] = broker_id

    def _closed(self, connection: ServerConnection) -> None:
        broker_id = self._heard.pop(connection)
        if broker_id not in self._heard.values():
            self._controller.broker_gone(broker_id)


class ControllerRegistrationHandler:
    """Registers a controller, with its listeners and features."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: registrations.ControllerRegistrationRequest, context: RequestContext) -> None:
        """Raises KafkaError INVALID_REGISTRATION."""
        if request.controller_id < 0 or max(len(request.listeners), len(request.features)) > MAX_LISTENERS:
            raise KafkaError(ErrorCode.INVALID_REGISTRATION, f"controller {request.controller_id} cannot be registered")
        response = registrations.ControllerRegistrationResponse(error_message=None)
        command = wire.controller_registration_command(request)
        self._controller.submit(command, context.answering(request, lambda _: response))


class AllocateProducerIdsHandler:
    """Allocates a block of producer ids to a broker."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: transactions.AllocateProducerIdsRequest, context: RequestContext) -> None:
        self._controller.submit(wire.producer_ids_command(request), context.answering(request, _block))


def _block(answer: ProducerIdBlock) -> transactions.AllocateProducerIdsResponse:
    return transactions.AllocateProducerIdsResponse(producer_id_start=answer.first, producer_id_len=answer.size)


class AlterPartitionHandler:
    """Receives changes of in-sync replicas from leaders."""

    def __init__(self, *, controller: QuorumController) -> None:
        self._controller = controller

    def handle(self, request: replicas.AlterPartitionRequest, context: RequestContext) -> None:
        def response(answer: PartitionsAltered) -> replicas.AlterPartitionResponse:
            end_offset = self._controller.applied_end_offset if request.wants_end_offset else -1
            return replicas_wire.altered_response(answer, end_offset)

        command = replicas_wire.alter_partition_command(request, context.api_version)
        self._controller.submit(command, context.answering(request, response))


class AssignReplicasToDirsHandler:
    """Receives the directories of a broker's replicas."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: log_dirs.AssignReplicasToDirsRequest, context: RequestContext) -> None:
        answer = context.answering(request, partial(_assigned, request))
        self._controller.submit(_assignments(request), answer)


def _assignments(request: log_dirs.AssignReplicasToDirsRequest) -> AssignDirectories:
    return AssignDirectories(
        broker_id=BrokerId(request.broker_id),
        broker_epoch=request.broker_epoch,
        secret=request.secret,
        assignments=tuple(
            DirectoryAssignment(
                directory_id=directory.id, topic_id=TopicId(topic.topic_id), partition=named.partition_index
            )
            for directory in request.directories
            for topic in directory.topics
            for named in topic.partitions
        ),
    )


def _assigned(
    request: log_dirs.AssignReplicasToDirsRequest, answer: DirectoriesAssigned
) -> log_dirs.AssignReplicasToDirsResponse:
    """The response: an error code for each partition, in the shape and the order of the request."""
    errors = iter(answer.errors)

    def code() -> int:
        error = next(errors)
        return ErrorCode.NONE if error is None else error.code

    return log_dirs.AssignReplicasToDirsResponse(
        directories=tuple(
            log_dirs.AssignedDirectoryResult(
                id=directory.id,
                topics=tuple(
                    log_dirs.AssignedTopicResult(
                        topic_id=topic.topic_id,
                        partitions=tuple(
                            log_dirs.AssignedPartitionResult(partition_index=named.partition_index, error_code=code())
                            for named in topic.partitions
                        ),
                    )
                    for topic in directory.topics
                ),
            )
            for directory in request.directories
        )
    )
