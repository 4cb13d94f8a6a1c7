"""Checks of a ConsumerGroupHeartbeat that need no group (KIP-848)."""

from tailrace.coordinators.groups.consumer.assignors import ASSIGNORS
from tailrace.coordinators.groups.consumer.group import NOT_THERE
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest

_FIRST_WITH_OWN_MEMBER_ID = 1
_LONGEST_NAME = 8191
"""Characters: what is longer has no form in the group's records."""


def check_heartbeat(request: ConsumerGroupHeartbeatRequest, version: int, *, max_bytes: int) -> None:
    """Raises KafkaError INVALID_REQUEST (42), UNSUPPORTED_ASSIGNOR (112)."""
    fault = _fault(request, version) or _fault_of_size(request, max_bytes)
    if fault is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, fault)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        detail = f"assignor {request.server_assignor!r} is not served; known are {', '.join(ASSIGNORS)}"
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, detail)


def _fault(request: ConsumerGroupHeartbeatRequest, version: int) -> str | None:
    if not request.group_id.strip():
        return "the group id is empty"
    if request.instance_id == "" or request.rack_id == "":
        return "an instance id or a rack id is null or not empty"
    if any(len(name or "") > _LONGEST_NAME for name in (request.member_id, request.instance_id, request.rack_id)):
        return f"a name in the request has more than {_LONGEST_NAME} characters"
    if request.member_epoch < NOT_THERE:
        return f"member epoch {request.member_epoch} means nothing"
    if not request.member_id.strip() and (request.member_epoch != 0 or version >= _FIRST_WITH_OWN_MEMBER_ID):
        return "the member id is empty"
    if request.member_epoch == NOT_THERE and request.instance_id is None:
        return "only a static member, with an instance id, leaves to come back"
    if request.member_epoch == 0:
        return _fault_of_join(request)
    return None


def _fault_of_size(request: ConsumerGroupHeartbeatRequest, max_bytes: int) -> str | None:
    """A member's subscription becomes one record."""
    names = request.subscribed_topic_names or ()
    if sum(len(name.encode()) + 4 for name in names) > max_bytes:
        return f"the names of the subscribed topics take more than group.max.metadata.bytes={max_bytes}"
    return None


def _fault_of_join(request: ConsumerGroupHeartbeatRequest) -> str | None:
    if request.rebalance_timeout_ms == -1:
        return "a member that joins says its rebalance timeout"
    if request.topic_partitions is None or request.topic_partitions:
        return "a member that joins owns no partitions, and says so"
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return "a member that joins says what it subscribes to"
    return None
