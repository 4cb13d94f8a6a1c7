"""Metadata (3): the topics, the leaders of their partitions, and the addresses of brokers.

Topics asked for: v0 an empty list means every topic; from v1 on null means every topic, and an empty list none. v10 and
v11 show topic ids in the answer only; from v12 on a topic may be asked for by id alone. v13: an error of the whole
answer. Fields by version: v1 rack, controller, is_internal; v2 cluster id; v4 auto-creation can be declined; v5 offline
replicas; v7 leader epochs; v8 authorized operations.

A topic that this request creates is UNKNOWN_TOPIC_OR_PARTITION in its answer, in every version, as in Kafka: a client
that checks whether a deleted topic is gone must not see the topic that the check has created. Unlike in Kafka, the
answer waits for the creation: so the client's next answer has the topic, and the error of a failed creation is in this
answer.

A view of a topic (decision 0057) is shown to a client that names it, by name or by id. No request creates a view.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import compress
from typing import Final

from tailrace.metadata.commands import ControllerResponse, CreateTopics, TopicRefused, TopicsCreated, TopicSpec
from tailrace.metadata.image import ClusterImage, TopicImage
from tailrace.metadata.views import ViewImage, Views
from tailrace.model.access import CLUSTER, Operation, SecuredResource, SecuredType
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, ZERO_TOPIC_ID, BrokerId
from tailrace.model.partitions import (
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    PartitionState,
    topic_name_fault,
)
from tailrace.model.views import parse_view
from tailrace.protocol.access import topic_resource
from tailrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tailrace.server.context import RequestContext
from tailrace.server.metadata.cluster import (
    NOT_ASKED,
    broker_for_administration,
    operations_on_cluster,
    reachable_brokers,
    registered_brokers,
)
from tailrace.server.ports import Controller
from tailrace.server.slices import STEP, Stepwise, mapped, mapped_in, once

MAX_WAITING: Final = 1_000
"""The most requests that wait for topics."""
MAX_TOPICS_ASKED_FOR: Final = 100_000
"""The most topics in all waiting requests, existing topics included: requests stay in memory until their answers."""
MAX_NAMES: Final = 10_000
"""The most topics that are being created, for one request and for all requests together."""

OnDone = Callable[[Mapping[str, KafkaError]], None]
"""Called with the topics that could not be created, and the errors."""


class _WaitingTopic:
    """A request that waits for topics."""

    __slots__ = ("asked_for", "left", "on_done", "refusals")

    def __init__(self, names: Sequence[str], refusals: dict[str, KafkaError], on_done: OnDone, asked_for: int) -> None:
        self.left = len(names)
        self.refusals = refusals
        self.on_done = on_done
        self.asked_for = asked_for


class TopicCreations:
    """Topics that are created on demand: a topic is requested once, and all clients wait for the same request.

    Without an active controller the wait has no known end, so the numbers of waiting requests and of topics are
    limited. Requests beyond the limits are refused at once with REQUEST_TIMED_OUT, and clients retry. (Kafka's requests
    do not wait; Kafka does not request a topic twice either.)
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._by_name: dict[str, list[_WaitingTopic]] = {}
        self._waiting = 0
        self._asked_for = 0

    def create(self, names: Sequence[str], on_done: OnDone, *, asked_for: int) -> None:
        """Create these topics. `on_done` is called once, perhaps before `create` returns; `asked_for` is the number of
        topics in the request."""
        if self._waiting >= MAX_WAITING or self._asked_for + asked_for > MAX_TOPICS_ASKED_FOR:
            on_done(dict.fromkeys(names, _refusal()))
            return
        new = [name for name in names if name not in self._by_name]
        refused = new[max(0, MAX_NAMES - len(self._by_name)) :]
        new = new[: len(new) - len(refused)]
        refusals = dict.fromkeys(refused, _refusal())
        awaited = [name for name in names if name not in refusals]
        if not awaited:
            on_done(refusals)
            return
        self._waiting += 1
        self._asked_for += asked_for
        waiting = _WaitingTopic(awaited, refusals, on_done, asked_for)
        for name in awaited:
            self._by_name.setdefault(name, []).append(waiting)
        if new:
            self._send(new)

    def _send(self, names: Sequence[str]) -> None:
        # The topics get the cluster's default numbers of partitions and replicas.
        topics = tuple(TopicSpec(name=name) for name in names)
        command = CreateTopics(topics=topics, requested_by="auto.create.topics.enable")
        self._controller.submit(command, lambda outcome: self._decided(names, outcome))

    def _decided(self, names: Sequence[str], outcome: ControllerResponse | KafkaError) -> None:
        refusals = _refusals(outcome, names)
        over: list[_WaitingTopic] = []
        for name in names:
            refusal = refusals.get(name)
            for waiting in self._by_name.pop(name):
                if refusal is not None:
                    waiting.refusals[name] = refusal
                waiting.left -= 1
                if not waiting.left:
                    over.append(waiting)
        for waiting in over:
            self._waiting -= 1
            self._asked_for -= waiting.asked_for
        for waiting in over:
            waiting.on_done(waiting.refusals)


def _refusal() -> KafkaError:
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, "too many topics are being created; ask again later")


def _refusals(outcome: ControllerResponse | KafkaError, names: Sequence[str]) -> Mapping[str, KafkaError]:
    """The errors of the topics that could not be created."""
    if isinstance(outcome, KafkaError):
        return dict.fromkeys(names, outcome)
    assert isinstance(outcome, TopicsCreated)
    return {result.name: result.error for result in outcome.results if isinstance(result, TopicRefused)}


OfflineReplica = Callable[[str, int], BrokerId | None]
"""The id of this broker if its replica of the partition cannot be opened; else None."""

_JUST_CREATED: Final = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "created by this request")

_REFUSED: Final = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
VIEW_OPERATIONS: Final = sum(1 << code for code in (3, 8, 10))
"""READ, DESCRIBE, DESCRIBE_CONFIGS: views can only be read."""
MAX_VIEW_PARTITIONS: Final = 100_000
"""The most partitions of views in one answer: the name of a view is short, and its answer is long. Further views get
error 44."""

_FIRST_WITH_NULL_FOR_ALL = 1
_FIRST_WITH_LISTENER_ERROR = 6
_FIRST_WITH_IDS = 10
_FIRST_BY_ID = 12


class MetadataHandler:
    """Answers from the committed image. Creates missing topics if the request and auto.create.topics.enable both allow
    that."""

    def __init__(
        self,
        *,
        controller: Controller,
        broker_id: BrokerId,
        cluster_id: str,
        auto_create: bool,
        offline_replica: OfflineReplica,
        views: Views,
    ) -> None:
        """`broker_id`: this broker."""
        self._controller = controller
        self._views = views
        self._broker_id = broker_id
        self._offline_replica = offline_replica
        self._cluster_id = cluster_id
        self._auto_create = auto_create
        self._creations = TopicCreations(controller)

    def handle(self, request: MetadataRequest, context: RequestContext) -> Stepwise[MetadataResponse | None]:
        wanted = yield from _wanted_topics(request, context.api_version)
        to_create = yield from self._topics_to_create(wanted, request)
        refused: dict[str, KafkaError] = {}
        if to_create and context.has_authorizer and not context.authorize(Operation.CREATE, CLUSTER):
            may_create = yield from mapped(
                lambda name: context.authorize(Operation.CREATE, topic_resource(name)), to_create
            )
            refused = {
                name: _REFUSED for name, is_permitted in zip(to_create, may_create, strict=True) if not is_permitted
            }
            to_create = tuple(compress(to_create, may_create))
        if not to_create:
            return (yield from self._response(request, wanted, context, refused))

        def answer(refusals: Mapping[str, KafkaError]) -> None:
            unseen = refused | dict.fromkeys(to_create, _JUST_CREATED) | dict(refusals)
            context.respond_in_steps(self._response(request, wanted, context, unseen))

        self._creations.create(to_create, answer, asked_for=0 if wanted is None else len(wanted))
        return None

    def _topics_to_create(
        self, wanted: Iterable[MetadataRequestTopic] | None, request: MetadataRequest
    ) -> Stepwise[tuple[str, ...]]:
        if wanted is None or not self._auto_create or not request.allow_auto_topic_creation:
            return ()
        topics = self._controller.image.topics

        def name_to_create(topic: MetadataRequestTopic) -> str | None:
            name = topic.name if topic.topic_id == ZERO_TOPIC_ID else None
            return None if name is None or name in topics or not _may_be_created(name) else name

        names = yield from once(map(name_to_create, wanted))
        names.pop(None, None)
        return tuple(name for name in names if name is not None)

    def _response(
        self,
        request: MetadataRequest,
        wanted: Iterable[MetadataRequestTopic] | None,
        context: RequestContext,
        unseen: Mapping[str, KafkaError],
    ) -> Stepwise[MetadataResponse]:
        """`unseen`: topics that get an error in this answer, even if a topic exists by now."""
        image = self._controller.image
        with_operations = request.include_topic_authorized_operations
        view = _View(image, self._views, context, self._offline_replica, with_operations=with_operations)
        found: Iterable[TopicImage | MetadataResponseTopic] = image.topics.values()
        if wanted is not None:
            found = (view.wanted(topic, unseen) for topic in wanted)
        elif context.has_authorizer:
            found = yield from describable(image.topics.values(), context)
        topics = yield from mapped_in(found, view.partitions_of, view.partition, view.topic)
        return MetadataResponse(
            brokers=view.brokers(),
            cluster_id=self._cluster_id,
            controller_id=broker_for_administration(image, self._broker_id, context.identity.listener_name),
            topics=topics,
            cluster_authorized_operations=operations_on_cluster(
                context, is_asked=request.include_cluster_authorized_operations
            ),
        )


def describable(topics: Iterable[TopicImage], context: RequestContext) -> Stepwise[list[TopicImage]]:
    """The topics that the client may describe."""
    found: list[TopicImage] = []
    for number, topic in enumerate(topics, 1):
        if not number % STEP:
            yield
        if context.authorize(Operation.DESCRIBE, topic_resource(topic.name)):
            found.append(topic)
    return found


def _named_by(topic: MetadataRequestTopic) -> SecuredResource:
    """The topic that an element of a request is about: an id goes before a name."""
    by_id = SecuredResource(SecuredType.TOPIC, "", topic.topic_id)
    return by_id if topic.topic_id != ZERO_TOPIC_ID else topic_resource(topic.name or "")


def operations_on_topic(name: str, context: RequestContext, *, is_view: bool = False) -> int:
    """The operations of the client on a topic or a view, as bits (KIP-430)."""
    operations = context.operations_on(topic_resource(name))
    return operations & VIEW_OPERATIONS if is_view else operations


_NOT_CREATED = INTERNAL_TOPICS | {METADATA_TOPIC}
"""The topics that are not created on demand: coordinators create these topics, with other sizes."""


def _may_be_created(name: str) -> bool:
    return topic_name_fault(name) is None and name not in _NOT_CREATED and parse_view(name) is None


def _wanted_topics(request: MetadataRequest, version: int) -> Stepwise[Collection[MetadataRequestTopic] | None]:
    """The topics of the request, without repetitions; None for all topics."""
    topics = request.topics
    if topics is None or (not topics and version < _FIRST_WITH_NULL_FOR_ALL):
        return None
    wanted = yield from once(topics)
    if version < _FIRST_BY_ID:
        for topic in wanted:
            if topic.name is None or topic.topic_id != ZERO_TOPIC_ID:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"below version {_FIRST_BY_ID} every topic has a name and no id"
                )
    return wanted


class _View:
    """The image as one client sees it: through its listener, in the version of its request."""

    def __init__(
        self,
        image: ClusterImage,
        views: Views,
        context: RequestContext,
        offline_replica: OfflineReplica,
        *,
        with_operations: bool,
    ) -> None:
        self._image = image
        self._views = views
        self._offline_replica = offline_replica
        self._version = context.api_version
        self._context = context
        self._with_operations = with_operations
        self._left = MAX_VIEW_PARTITIONS
        self._listener_name = context.identity.listener_name
        self._reachable = reachable_brokers(image, self._listener_name)

    def brokers(self) -> tuple[MetadataResponseBroker, ...]:
        """The brokers that are not fenced. While every broker is fenced, as after a start of the cluster, all brokers.

        A client drops the brokers that are not listed. After an empty list librdkafka has no broker to ask any more,
        and does not recover.
        """
        listed = self._reachable or registered_brokers(self._image, self._listener_name)
        return tuple(
            MetadataResponseBroker(
                node_id=broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=self._image.brokers[broker_id].rack,
            )
            for broker_id, endpoint in listed.items()
        )

    def wanted(
        self, topic: MetadataRequestTopic, unseen: Mapping[str, KafkaError]
    ) -> TopicImage | MetadataResponseTopic:
        """The topic, or the answer with its error."""
        may_describe = not self._context.has_authorizer or self._context.permits(Operation.DESCRIBE, _named_by(topic))
        if topic.topic_id != ZERO_TOPIC_ID:
            found = self._views.topic_by_id(self._image, topic.topic_id)
            if found is not None and may_describe:
                return self._topic_or_view(found)
            return self._missing(ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic.topic_id)
        name = topic.name or ""
        if not may_describe:
            return self._missing(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
        if name in unseen:
            return self._missing(unseen[name].code, name=name)
        found = self._views.topic(self._image, name)
        if found is not None:
            return self._topic_or_view(found)
        if topic_name_fault(name) is not None:
            return self._missing(ErrorCode.INVALID_TOPIC_EXCEPTION, name=name)
        return self._missing(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)

    def _topic_or_view(self, topic: TopicImage) -> TopicImage | MetadataResponseTopic:
        if isinstance(topic, ViewImage):
            if len(topic.partitions) > self._left:
                return self._missing(ErrorCode.POLICY_VIOLATION, name=topic.name, topic_id=topic.topic_id)
            self._left -= len(topic.partitions)
        return topic

    def partitions_of(self, topic: TopicImage | MetadataResponseTopic) -> Iterable[tuple[int, PartitionState]]:
        """The partitions that are in the answer, in order."""
        return () if isinstance(topic, MetadataResponseTopic) else sorted(topic.partitions.items())

    def topic(
        self, topic: TopicImage | MetadataResponseTopic, partitions: tuple[MetadataResponsePartition, ...]
    ) -> MetadataResponseTopic:
        """The answer of a topic with the answers of its partitions."""
        if isinstance(topic, MetadataResponseTopic):
            return topic
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=partitions,
            topic_authorized_operations=self._operations_on(topic.name, is_view=isinstance(topic, ViewImage)),
        )

    def _missing(self, code: ErrorCode, *, name: str | None, topic_id: bytes = ZERO_TOPIC_ID) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            error_code=code,
            name=name,
            topic_id=topic_id,
            is_internal=name in INTERNAL_TOPICS,
            partitions=(),
            topic_authorized_operations=NOT_ASKED if name is None else self._operations_on(name),
        )

    def _operations_on(self, name: str, *, is_view: bool = False) -> int:
        return operations_on_topic(name, self._context, is_view=is_view) if self._with_operations else NOT_ASKED

    def partition(
        self, topic: TopicImage | MetadataResponseTopic, numbered: tuple[int, PartitionState]
    ) -> MetadataResponsePartition:
        """The answer of a partition."""
        assert not isinstance(topic, MetadataResponseTopic), "an answer with an error has no partitions"
        number, state = numbered
        offline = self._offline_replica(*topic.stored_as(number))
        replicas, in_sync = state.replicas, state.in_sync_replicas
        if self._version == 0:
            # The oldest clients fail on a replica that is not in the list of brokers.
            replicas, in_sync = self._reachable_of(replicas), self._reachable_of(in_sync)
        leader_is_reachable = state.leader in self._reachable and state.leader != offline
        code = ErrorCode.NONE if leader_is_reachable else self._leader_error(state, offline)
        if code is ErrorCode.NONE and len(replicas) + len(in_sync) < len(state.replicas) + len(state.in_sync_replicas):
            code = ErrorCode.REPLICA_NOT_AVAILABLE
        return MetadataResponsePartition(
            error_code=code,
            partition_index=number,
            leader_id=state.leader if leader_is_reachable else NO_LEADER,
            leader_epoch=state.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=in_sync,
            offline_replicas=tuple(
                replica for replica in state.replicas if replica not in self._reachable or replica == offline
            ),
        )

    def _leader_error(self, state: PartitionState, offline: BrokerId | None) -> ErrorCode:
        """The error of a partition without a usable leader, or whose leader does not have this client's listener."""
        leader = self._image.brokers.get(state.leader)
        if (
            state.leader != offline
            and leader is not None
            and not leader.fenced
            and self._version >= _FIRST_WITH_LISTENER_ERROR
        ):
            return ErrorCode.LISTENER_NOT_FOUND
        return ErrorCode.LEADER_NOT_AVAILABLE

    def _reachable_of(self, brokers: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
        return tuple(broker_id for broker_id in brokers if broker_id in self._reachable)
