"""ElectLeaders (43), AlterPartitionReassignments (45) and ListPartitionReassignments (46).

ElectLeaders: v1 unclean elections, and an error of the whole answer (KIP-460); v2 flexible.
AlterPartitionReassignments: v1 may forbid a change of the number of replicas (KIP-860). The first refusals of an answer
have a text, later refusals only a code, so that a small request has no large answer.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from tailrace.metadata.commands import (
    AlterReassignments,
    ElectLeaders,
    LeadersElected,
    PartitionOutcome,
    Reassignment,
    ReassignmentsAltered,
)
from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import ElectionType, TopicPartition
from tailrace.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    PartitionResult,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from tailrace.server.context import RequestContext
from tailrace.server.ports import Controller

_ANY: Final = -1
EXPLAINED: Final = 100
"""The most refusals of one answer that have a text."""


class _PartitionCode(NamedTuple):
    """The answer for one partition."""

    partition: int
    code: ErrorCode
    message: str | None


def _by_topic(outcomes: Iterable[PartitionOutcome]) -> Mapping[str, list[_PartitionCode]]:
    codes: dict[str, list[_PartitionCode]] = defaultdict(list)
    explained = 0
    for outcome in outcomes:
        topic, index = outcome.topic_partition
        if outcome.error is None:
            codes[topic].append(_PartitionCode(index, ErrorCode.NONE, None))
            continue
        explained += 1
        message = outcome.error.detail or None if explained <= EXPLAINED else None
        codes[topic].append(_PartitionCode(index, outcome.error.code, message))
    return codes


class ElectLeadersHandler:
    """Sends elections of leaders to the controller.

    A request for all partitions is answered with the partitions that needed a leader.
    """

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: ElectLeadersRequest, context: RequestContext) -> None:
        command = ElectLeaders(
            type=_election_type(request), partitions=_wanted(request), desired_leaders=_desired_leaders(request)
        )
        self._controller.submit(command, context.answering(request, _elected))


def _elected(outcome: LeadersElected) -> ElectLeadersResponse:
    results = tuple(
        ReplicaElectionResult(
            topic=topic,
            partition_result=tuple(
                PartitionResult(partition_id=code.partition, error_code=code.code, error_message=code.message)
                for code in codes
            ),
        )
        for topic, codes in _by_topic(outcome.outcomes).items()
    )
    return ElectLeadersResponse(replica_election_results=results)


def _election_type(request: ElectLeadersRequest) -> ElectionType:
    try:
        return ElectionType(request.election_type)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"elections of type {request.election_type} do not exist; 0 is preferred, 1 any"
        ) from None


def _wanted(request: ElectLeadersRequest) -> tuple[TopicPartition, ...] | None:
    """The partitions of the request, without repetitions; None for every partition."""
    if request.topic_partitions is None:
        return None
    named = (TopicPartition(topic.topic, index) for topic in request.topic_partitions for index in topic.partitions)
    return tuple(dict.fromkeys(named))


def _desired_leaders(request: ElectLeadersRequest) -> Mapping[TopicPartition, BrokerId]:
    desired: dict[TopicPartition, BrokerId] = {}
    for topic in request.topic_partitions or ():
        if len(topic.desired_leaders) not in (0, len(topic.partitions)):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{len(topic.desired_leaders)} desired leaders for {len(topic.partitions)} partitions of {topic.topic}",
            )
        for index, leader in zip(topic.partitions, topic.desired_leaders, strict=False):
            if leader != _ANY:
                desired[TopicPartition(topic.topic, index)] = BrokerId(leader)
    return desired


class AlterPartitionReassignmentsHandler:
    """Sends reassignments of replicas to the controller."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: AlterPartitionReassignmentsRequest, context: RequestContext) -> None:
        command = AlterReassignments(
            reassignments=_reassignments(request),
            allows_replication_factor_change=request.allow_replication_factor_change,
        )

        def response(outcome: ReassignmentsAltered) -> AlterPartitionReassignmentsResponse:
            responses = tuple(
                ReassignableTopicResponse(
                    name=topic,
                    partitions=tuple(
                        ReassignablePartitionResponse(
                            partition_index=code.partition, error_code=code.code, error_message=code.message
                        )
                        for code in codes
                    ),
                )
                for topic, codes in _by_topic(outcome.outcomes).items()
            )
            return AlterPartitionReassignmentsResponse(
                allow_replication_factor_change=request.allow_replication_factor_change,
                error_message=None,
                responses=responses,
            )

        self._controller.submit(command, context.answering(request, response))


def _reassignments(request: AlterPartitionReassignmentsRequest) -> tuple[Reassignment, ...]:
    """The reassignments of the request. Raises KafkaError(INVALID_REQUEST) for a partition that is named twice."""
    wanted: dict[TopicPartition, Reassignment] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            where = TopicPartition(topic.name, partition.partition_index)
            if where in wanted:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{where} is named twice")
            replicas = partition.replicas
            wanted[where] = Reassignment(
                topic_partition=where,
                replicas=None if replicas is None else tuple(BrokerId(broker_id) for broker_id in replicas),
            )
    return tuple(wanted.values())


class ListPartitionReassignmentsHandler:
    """Lists the partitions under reassignment; partitions that do not exist are left out, as in Kafka."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(
        self, request: ListPartitionReassignmentsRequest, context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        image = self._controller.image
        numbers_by_topic: dict[str, dict[int, None]] = defaultdict(dict)
        if request.topics is None:
            numbers_by_topic.update((name, dict.fromkeys(topic.partitions)) for name, topic in image.topics.items())
        else:
            for topic in request.topics:  # a topic may be named several times
                numbers_by_topic[topic.name].update(dict.fromkeys(topic.partition_indexes))
        topics = ((name, tuple(_moves(image, name, partitions))) for name, partitions in numbers_by_topic.items())
        return ListPartitionReassignmentsResponse(
            error_message=None,
            topics=tuple(OngoingTopicReassignment(name=name, partitions=moves) for name, moves in topics if moves),
        )


def _moves(image: ClusterImage, topic: str, partitions: Iterable[int]) -> Iterator[OngoingPartitionReassignment]:
    for index in partitions:
        state = image.partition(topic, index)
        if state is not None and (state.adding_replicas or state.removing_replicas):
            yield OngoingPartitionReassignment(
                partition_index=index,
                replicas=state.replicas,
                adding_replicas=state.adding_replicas,
                removing_replicas=state.removing_replicas,
            )
