"""FindCoordinator (10): which broker keeps a group.

v1 adds the type of the key and error messages; v4 asks for many keys at once (KIP-699); v6 knows share groups, which
are not served. `__consumer_offsets` is created when somebody first asks for a group; the answer goes out when it is
there, so that the client need not ask again as with Kafka.
"""

from collections.abc import Callable

from tailrace.coordinators.addressing import CoordinatorType, partition_of_group
from tailrace.coordinators.groups.config import GroupConfig
from tailrace.metadata.commands import ControllerResponse, CreateTopics, NewTopic
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC
from tailrace.protocol.messages.coordinators import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.server.context import RequestContext
from tailrace.server.ports import Controller

_FIRST_WITH_MANY_KEYS = 4


class FindCoordinatorHandler:
    """Answers from the committed image."""

    def __init__(self, *, controller: Controller, config: GroupConfig) -> None:
        self._controller = controller
        self._config = config
        self._waiting: list[Callable[[], None]] = []
        """For the offsets topic to be created."""

    def handle(self, request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse | None:
        _check_type(request.key_type)
        if GROUP_OFFSETS_TOPIC in self._controller.image.topics:
            return self._response(request, context)
        self._create_topic_then(lambda: context.respond(self._response(request, context)))
        return None

    def _create_topic_then(self, callback: Callable[[], None]) -> None:
        self._waiting.append(callback)
        if len(self._waiting) > 1:
            return
        config = self._config
        replication_factor = min(config.offsets_topic_replication_factor, len(self._controller.image.alive_brokers()))
        topic = NewTopic(
            name=GROUP_OFFSETS_TOPIC,
            num_partitions=config.offsets_topic_num_partitions,
            replication_factor=max(replication_factor, 1),
            configs=(
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(config.offsets_topic_segment_bytes)),
            ),
        )
        self._controller.submit(CreateTopics(topics=(topic,)), self._topic_created)

    def _topic_created(self, _outcome: ControllerResponse | KafkaError) -> None:
        # Whatever came of it, the image says whether there is a coordinator now.
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def _response(self, request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
        if context.api_version >= _FIRST_WITH_MANY_KEYS:
            found = tuple(self._find(key, context.connection.listener_name) for key in request.coordinator_keys)
            return FindCoordinatorResponse(coordinators=found)
        found_one = self._find(request.key, context.connection.listener_name)
        return FindCoordinatorResponse(
            error_code=found_one.error_code,
            error_message=found_one.error_message,
            node_id=found_one.node_id,
            host=found_one.host,
            port=found_one.port,
        )

    def _find(self, group_id: str, listener_name: str) -> Coordinator:
        image = self._controller.image
        topic = image.topics.get(GROUP_OFFSETS_TOPIC)
        if topic is None:
            return _none(group_id, f"{GROUP_OFFSETS_TOPIC} could not be created yet")
        number = partition_of_group(group_id, len(topic.partitions)).partition
        broker = image.brokers.get(topic.partitions[number].leader)
        endpoint = None if broker is None else broker.endpoint(listener_name)
        if broker is None or endpoint is None:
            return _none(group_id, f"{GROUP_OFFSETS_TOPIC}-{number} has no leader that listens on {listener_name}")
        return Coordinator(
            key=group_id, node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, error_message=None
        )


def _check_type(key_type: int) -> None:
    if key_type == CoordinatorType.TRANSACTION:
        # Final for every client, where COORDINATOR_NOT_AVAILABLE is asked again until a time-out.
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "transactions are not served by this release; produce without a transactional.id",
        )
    if key_type != CoordinatorType.GROUP:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"coordinators of type {key_type} are not served; 0 is a group's")


def _none(key: str, why: str) -> Coordinator:
    return Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=why
    )
