"""The comparison of conversations finds what differs, and passes over what depends on the pace."""

from interop.differential.members.member_records import MemberExchange, MemberRecord, compared
from tailrace.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)

OWNED = (HeartbeatTopicPartitions(topic_id=bytes(15) + b"\1", partitions=(0, 1)),)


def _beat(
    epoch: int, answered: int, *, partitions: tuple[HeartbeatTopicPartitions, ...] = (), code: int = 0
) -> MemberExchange:
    """A heartbeat that gets these partitions."""
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch)
    assignment = HeartbeatAssignment(topic_partitions=partitions) if partitions else None
    answer = ConsumerGroupHeartbeatResponse(error_code=code, member_epoch=answered, assignment=assignment)
    return MemberExchange("g: it joins", "alice", 1, request, answer)


def _findings(ours: list[MemberExchange], theirs: list[MemberExchange]) -> list[tuple[str, str]]:
    records = (MemberRecord("127.0.0.1:1"), MemberRecord("127.0.0.1:2"))
    for record, exchanges in zip(records, (ours, theirs), strict=True):
        for exchange in exchanges:
            record.add(exchange)
    found = compared(*(record.told() for record in records)).findings
    return [(finding.step.rpartition(" ")[2], finding.path) for finding in found]


def test_epochs_are_compared_by_their_order_and_heartbeats_without_news_are_left_out() -> None:
    ours = [_beat(1, 2, partitions=OWNED), _beat(2, 2), _beat(2, 3)]
    theirs = [_beat(4, 4), _beat(4, 6, partitions=OWNED), _beat(6, 9)]
    assert _findings(ours, theirs) == []


def test_another_order_of_epochs_is_found() -> None:
    assert _findings([_beat(1, 2), _beat(2, 3)], [_beat(1, 2), _beat(1, 3)]) == [("2", "asked.member_epoch")]


def test_another_error_is_found() -> None:
    assert _findings([_beat(1, 1, code=25)], [_beat(1, 1, code=110)]) == [("1", "answer.error_code")]


def test_an_exchange_that_one_server_lacks_is_found() -> None:
    assert _findings([_beat(1, 2)], [_beat(1, 2), _beat(2, 3)]) == [("2", "exchange")]


def test_another_assignment_is_found() -> None:
    more = (HeartbeatTopicPartitions(topic_id=bytes(15) + b"\1", partitions=(0, 1, 2)),)
    (found,) = _findings([_beat(1, 2, partitions=OWNED)], [_beat(1, 2, partitions=more)])
    assert found[1].endswith("partitions")
