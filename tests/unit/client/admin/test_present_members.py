"""The refusal of a change for a group with members: it names the members, and says when silent members leave."""

import pytest

from tailrace.client.admin.present_members import refuse_members
from tailrace.client.group.described_groups import DescribedMember, GroupDescription
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.groups import GroupDetails, MemberDetails


def described(silent_ms: dict[str, int], *, has_details: bool = True) -> GroupDescription:
    """A group of members with a session of 6 s, and the time since the heartbeat of each member."""
    members = tuple(
        DescribedMember(member_id=name, group_instance_id=None, client_id="app", host="/127.0.0.1", assignment=())
        for name in silent_ms
    )
    heartbeats = tuple(
        MemberDetails(member_id=name, silent_ms=ms, session_timeout_ms=6_000) for name, ms in silent_ms.items()
    )
    details = GroupDetails(now_ms=0, events=(), topics=(), members=heartbeats)
    return GroupDescription(
        group="workers",
        state="Stable",
        protocol_type="consumer",
        assignor="uniform",
        coordinator_id=1,
        coordinator="127.0.0.1:9092",
        members=members,
        details=details if has_details else None,
    )


def refusal(group: GroupDescription) -> str:
    with pytest.raises(KafkaError) as refused:
        refuse_members(group)
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    return refused.value.detail


def test_a_group_without_members_is_not_refused() -> None:
    refuse_members(described({}))


def test_a_refusal_names_a_member_and_says_how_long_a_killed_member_stays() -> None:
    assert refusal(described({"b": 1_000})) == (
        "group 'workers' has members; stop them first: member b (app, /127.0.0.1), whose last heartbeat was 1 s ago;"
        " if it was killed, its session ends in 5 s"
    )


def test_a_refusal_by_silent_members_alone_says_to_wait() -> None:
    assert refusal(described({"a": 4_500, "b": 9_000})) == (
        "group 'workers' has silent members; wait until their sessions end:"
        " member a (app, /127.0.0.1) has been silent for 4.5 s, and its session ends in 1.5 s,"
        " member b (app, /127.0.0.1) has been silent for 9 s, and its session ends now"
    )


def test_a_refusal_without_heartbeats_names_the_members() -> None:
    assert refusal(described({"a": 0}, has_details=False)) == (
        "group 'workers' has members; stop them first: member a (app, /127.0.0.1)"
    )


def test_a_refusal_names_three_members_and_counts_the_rest() -> None:
    names = {str(number): 0 for number in range(5)}
    assert refusal(described(names, has_details=False)) == (
        "group 'workers' has members; stop them first: member 0 (app, /127.0.0.1), member 1 (app, /127.0.0.1),"
        " member 2 (app, /127.0.0.1), and 2 more (`tailrace groups describe workers --members`)"
    )
