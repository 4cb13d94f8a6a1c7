"""OffsetDelete (47): a group forgets its offsets in topics that no member reads any more (KIP-496).

A partition that does not exist has error 3, one of a topic that a member subscribes to error 86.
"""

from tailrace.coordinators.groups.commands import DeleteOffsets
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from tailrace.server.context import RequestContext
from tailrace.server.errors import error_response
from tailrace.server.groups.service import GroupCoordinatorService
from tailrace.server.ports import Controller


class OffsetDeleteHandler:
    """Hands the partitions that exist to the group's coordinator."""

    def __init__(self, *, coordinators: GroupCoordinatorService, controller: Controller) -> None:
        self._coordinators = coordinators
        self._controller = controller

    def handle(self, request: OffsetDeleteRequest, context: RequestContext) -> None:
        image = self._controller.image
        asked = dict.fromkeys(
            TopicPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
        )
        there = tuple(partition for partition in asked if image.partition(*partition) is not None)

        def answer(outcome: tuple[ErrorCode, ...] | KafkaError) -> None:
            if isinstance(outcome, KafkaError):
                context.respond(error_response(request, context.api_version, outcome))
            else:
                context.respond(_response(request, dict(zip(there, outcome, strict=True))))

        host = self._coordinators.host_of(request.group_id)
        host.submit(DeleteOffsets(group_id=request.group_id, partitions=there), answer)


def _response(request: OffsetDeleteRequest, codes: dict[TopicPartition, ErrorCode]) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(
        topics=tuple(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(
                        partition_index=each.partition_index,
                        error_code=codes.get(
                            TopicPartition(topic.name, each.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )
