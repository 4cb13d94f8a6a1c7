"""FindCoordinator (10): the broker that coordinates a group, or a transactional id.

v1 adds the type of the key and error messages; v4 has many keys (KIP-699); v6 has share groups, which are not served.
The first request for a coordinator creates `__consumer_offsets` or `__transaction_state`. The answer waits until the
topic exists; with Kafka the client has to repeat the request.
"""

from collections.abc import Callable
from typing import Final

from tailrace.coordinators.config import GroupConfig, TransactionConfig
from tailrace.metadata.commands import ControllerResponse, CreateTopics, TopicSpec
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_hash import coordinator_partition
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tailrace.model.sinks import coordinator_key
from tailrace.protocol.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.server.context import RequestContext
from tailrace.server.ports import Controller
from tailrace.server.slices import Stepwise, mapped

_FIRST_WITH_MANY_KEYS = 4

_TOPICS: Final = {0: GROUP_OFFSETS_TOPIC, 1: TRANSACTION_STATE_TOPIC}
"""The internal topic of each key type. Share groups (2, KIP-932) are not served."""


class FindCoordinatorHandler:
    """Answers from the committed image."""

    def __init__(
        self, *, controller: Controller, group_config: GroupConfig, transaction_config: TransactionConfig
    ) -> None:
        self._controller = controller
        self._group_config = group_config
        self._transaction_config = transaction_config
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        """The waiting requests, by the topic that is being created."""

    def handle(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> Stepwise[FindCoordinatorResponse | None]:
        topic = _topic_of(request.key_type)
        if topic in self._controller.image.topics:
            return (yield from self._response(topic, request, context))
        self._create_topic_then(topic, lambda: context.respond_in_steps(self._response(topic, request, context)))
        return None

    def _create_topic_then(self, topic: str, callback: Callable[[], None]) -> None:
        waiting = self._waiting.setdefault(topic, [])
        waiting.append(callback)
        if len(waiting) > 1:
            return

        def created(_outcome: ControllerResponse | KafkaError) -> None:
            # The response is made from the image, even if the creation has failed.
            for each in self._waiting.pop(topic):
                each()

        self._controller.submit(CreateTopics(topics=(self._new_topic(topic),), requested_by="FindCoordinator"), created)

    def _new_topic(self, name: str) -> TopicSpec:
        groups, transactions = self._group_config, self._transaction_config
        alive = max(len(self._controller.image.alive_brokers()), 1)
        configs = {"cleanup.policy": "compact"}
        if name == GROUP_OFFSETS_TOPIC:
            count, replicas = groups.offsets_topic_num_partitions, groups.offsets_topic_replication_factor
            configs |= {"compression.type": "producer", "segment.bytes": str(groups.offsets_topic_segment_bytes)}
        else:
            count = transactions.transaction_state_log_num_partitions
            replicas = transactions.transaction_state_log_replication_factor
            configs |= {
                "compression.type": "uncompressed",
                "min.insync.replicas": str(min(transactions.transaction_state_log_min_isr, replicas, alive)),
                "segment.bytes": str(transactions.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            }
        return TopicSpec(
            name=name, num_partitions=count, replication_factor=min(replicas, alive), configs=tuple(configs.items())
        )

    def _response(
        self, topic: str, request: FindCoordinatorRequest, context: RequestContext
    ) -> Stepwise[FindCoordinatorResponse]:
        listener_name = context.identity.listener_name
        if context.api_version >= _FIRST_WITH_MANY_KEYS:
            found = yield from mapped(lambda key: self._find(topic, key, listener_name), request.coordinator_keys)
            return FindCoordinatorResponse(coordinators=found)
        found_one = self._find(topic, request.key, listener_name)
        return FindCoordinatorResponse(
            error_code=found_one.error_code,
            error_message=found_one.error_message,
            node_id=found_one.node_id,
            host=found_one.host,
            port=found_one.port,
        )

    def _find(self, topic_name: str, key: str, listener_name: str) -> Coordinator:
        image = self._controller.image
        topic = image.topics.get(topic_name)
        if topic is None:
            return _none(key, f"{topic_name} could not be created yet")
        # Only a transactional id can belong to a sink's member: a group may have any name.
        hashed = coordinator_key(key) if topic_name == TRANSACTION_STATE_TOPIC else key
        number = coordinator_partition(hashed, len(topic.partitions))
        broker = image.brokers.get(topic.partitions[number].leader)
        endpoint = None if broker is None else broker.endpoint(listener_name)
        if broker is None or endpoint is None:
            return _none(key, f"{topic_name}-{number} has no leader that listens on {listener_name}")
        return Coordinator(
            key=key, node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, error_message=None
        )


def _topic_of(key_type: int) -> str:
    topic = _TOPICS.get(key_type)
    if topic is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"coordinators of type {key_type} are not served; 0 is a group's, 1 a transactional id's",
        )
    return topic


def _none(key: str, why: str) -> Coordinator:
    return Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=why
    )
