"""A member of a classic group: its requests, and the loss of its partitions."""

from tailrace.client.group.classic_member import (
    Assigned,
    AssignmentMade,
    ClassicMembership,
    Effect,
    HeartbeatAnswered,
    JoinAnswered,
    MakeAssignment,
    Revoke,
    Revoked,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    State,
    SyncAnswered,
    encode_assignment,
)
from tailrace.client.group.membership import (
    Failed,
    ForgetCoordinator,
    Leave,
    Lost,
    Polled,
    PollOverdue,
    RemovalCause,
    Removed,
    SubscriptionChanged,
)
from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick
from tailrace.model.partitions import TopicPartition

PARTITIONS = (TopicPartition("orders", 0), TopicPartition("orders", 1))
SESSION_MS, HEARTBEAT_MS = 10_000, 3_000


def _machine(*, is_static: bool = False) -> ClassicMembership:
    return ClassicMembership(
        session_timeout_ms=SESSION_MS, heartbeat_interval_ms=HEARTBEAT_MS, retry_backoff_ms=100, is_static=is_static
    )


def _join(machine: ClassicMembership, now_ms: int = 0) -> list[Effect]:
    effects = list(machine.step(Polled(), now_ms))
    joined = JoinAnswered(code=ErrorCode.NONE, member_id="m1", generation_id=4, protocol_name="range", leader="other")
    effects += machine.step(joined, now_ms)
    effects += machine.step(SyncAnswered(code=ErrorCode.NONE, assignment=encode_assignment(PARTITIONS)), now_ms)
    return effects


def test_a_follower_joins_syncs_and_gets_its_partitions() -> None:
    machine = _machine()
    assert _join(machine) == [SendJoin(""), SendSync("m1", 4, "range", ()), Assigned(PARTITIONS)]
    assert machine.state is State.STABLE


def test_it_joins_only_when_the_user_polls() -> None:
    machine = _machine()
    assert machine.step(Tick(), 0) == ()
    assert machine.step(SubscriptionChanged(), 0) == ()
    assert machine.step(Polled(), 0) == (SendJoin(""),)
    assert machine.step(Polled(), 0) == ()


def test_a_coordinator_that_wants_a_member_id_gets_a_second_join_with_it() -> None:
    machine = _machine()
    machine.step(Polled(), 0)
    assert machine.step(JoinAnswered(code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m1"), 0) == (SendJoin("m1"),)


def test_the_leader_makes_the_assignment_and_sends_it() -> None:
    machine = _machine()
    machine.step(Polled(), 0)
    members = (("m1", b"subscription"),)
    joined = JoinAnswered(
        code=ErrorCode.NONE, member_id="m1", generation_id=1, protocol_name="range", leader="m1", members=members
    )
    assert machine.step(joined, 0) == (MakeAssignment("range", members),)
    made = (("m1", b"assignment"),)
    assert machine.step(AssignmentMade(made), 0) == (SendSync("m1", 1, "range", made),)


def test_it_sends_heartbeats_at_the_interval_and_one_at_a_time() -> None:
    machine = _machine()
    _join(machine)
    assert machine.next_deadline_ms == HEARTBEAT_MS
    assert machine.step(Tick(), HEARTBEAT_MS - 1) == ()
    assert machine.step(Tick(), HEARTBEAT_MS) == (SendHeartbeat("m1", 4),)
    assert machine.step(Tick(), HEARTBEAT_MS + 1) == ()
    assert machine.step(HeartbeatAnswered(ErrorCode.NONE), HEARTBEAT_MS + 5) == ()
    assert machine.next_deadline_ms == 2 * HEARTBEAT_MS + 5


def test_a_rebalance_commits_before_it_joins_again_and_only_at_the_next_poll() -> None:
    machine = _machine()
    _join(machine)
    assert machine.step(HeartbeatAnswered(ErrorCode.REBALANCE_IN_PROGRESS), 100) == ()
    assert machine.state is State.MUST_REJOIN
    assert machine.step(Tick(), 100 + HEARTBEAT_MS) == (SendHeartbeat("m1", 4),), "it beats until the user polls"
    assert machine.step(Polled(), 200) == (Revoke(),)
    assert machine.step(Tick(), 100 + 2 * HEARTBEAT_MS) == (), "an answer is still to come"
    machine.step(HeartbeatAnswered(ErrorCode.REBALANCE_IN_PROGRESS), 100 + 2 * HEARTBEAT_MS)
    assert machine.step(Tick(), 100 + 3 * HEARTBEAT_MS) == (SendHeartbeat("m1", 4),), "it beats until it has revoked"
    assert machine.step(Revoked(), 100 + 3 * HEARTBEAT_MS) == (SendJoin("m1"),)


def test_a_member_unknown_to_the_group_loses_its_partitions_without_a_commit() -> None:
    causes = {
        ErrorCode.UNKNOWN_MEMBER_ID: RemovalCause.UNKNOWN_MEMBER,
        ErrorCode.ILLEGAL_GENERATION: RemovalCause.OLD_GENERATION,
    }
    for code, cause in causes.items():
        machine = _machine()
        _join(machine)
        assert machine.step(HeartbeatAnswered(code), 100) == (Removed(cause), Lost())
        assert machine.step(Polled(), 100) == (SendJoin(""),)


def test_the_removal_of_a_member_is_reported_once_when_it_joins_again() -> None:
    machine = _machine()
    _join(machine)
    machine.step(HeartbeatAnswered(ErrorCode.REBALANCE_IN_PROGRESS), 100)
    machine.step(Polled(), 200)
    machine.step(Revoked(), 200)
    answer = JoinAnswered(code=ErrorCode.UNKNOWN_MEMBER_ID)
    assert machine.step(answer, 300) == (Removed(RemovalCause.UNKNOWN_MEMBER), SendJoin(""))
    assert machine.step(answer, 400) == (SendJoin(""),), "once"


def test_silence_for_a_session_loses_the_partitions() -> None:
    machine = _machine()
    _join(machine)
    machine.step(Tick(), HEARTBEAT_MS)
    assert machine.next_deadline_ms == SESSION_MS
    assert machine.step(Tick(), SESSION_MS) == (ForgetCoordinator(), Removed(RemovalCause.SILENCE), Lost())


def test_a_coordinator_that_has_moved_is_looked_up_and_the_partitions_are_kept() -> None:
    machine = _machine()
    _join(machine)
    assert machine.step(HeartbeatAnswered(ErrorCode.NOT_COORDINATOR), 100) == (ForgetCoordinator(),)
    assert machine.state is State.STABLE
    assert machine.next_deadline_ms == 200


def test_a_join_that_fails_for_now_is_repeated_after_a_pause() -> None:
    machine = _machine()
    machine.step(Polled(), 0)
    assert machine.step(JoinAnswered(code=ErrorCode.COORDINATOR_NOT_AVAILABLE), 0) == (ForgetCoordinator(),)
    assert machine.step(Polled(), 50) == ()
    assert machine.step(Polled(), 100) == (SendJoin(""),)


def test_a_final_refusal_is_reported_once_and_ends_the_membership() -> None:
    machine = _machine()
    machine.step(Polled(), 0)
    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert machine.step(JoinAnswered(code=code), 0) == (Failed(code),)
    assert machine.step(Polled(), 1_000) == ()


def test_leaving_commits_and_sends_leave_group_unless_the_member_is_static() -> None:
    machine = _machine()
    _join(machine)
    assert machine.step(Leave(), 0) == (Revoke(),)
    assert machine.step(Tick(), HEARTBEAT_MS) == (SendHeartbeat("m1", 4),), "it beats until it has revoked"
    assert machine.step(Revoked(), HEARTBEAT_MS) == (SendLeave("m1"),)
    static = _machine(is_static=True)
    _join(static)
    assert static.step(Leave(), 0) == (Revoke(),)
    assert static.step(Revoked(), 0) == ()
    assert static.state is State.LEFT


def test_a_member_that_is_removed_while_it_revokes_loses_its_partitions_and_joins_at_the_next_poll() -> None:
    machine = _machine()
    _join(machine)
    machine.step(HeartbeatAnswered(ErrorCode.REBALANCE_IN_PROGRESS), 100)
    machine.step(Polled(), 200)
    machine.step(Tick(), 100 + HEARTBEAT_MS)
    effects = machine.step(HeartbeatAnswered(ErrorCode.UNKNOWN_MEMBER_ID), 100 + HEARTBEAT_MS)
    assert effects == (Removed(RemovalCause.UNKNOWN_MEMBER), Lost())
    assert machine.step(Revoked(), 100 + HEARTBEAT_MS) == ()
    assert machine.step(Polled(), 100 + HEARTBEAT_MS) == (SendJoin(""),)


def test_a_close_while_partitions_are_revoked_leaves_after_that() -> None:
    machine = _machine()
    _join(machine)
    machine.step(HeartbeatAnswered(ErrorCode.REBALANCE_IN_PROGRESS), 100)
    machine.step(Polled(), 200)
    assert machine.step(Leave(), 200) == ()
    assert machine.step(Revoked(), 300) == (SendLeave("m1"),)


def test_a_user_that_does_not_poll_loses_its_partitions_until_it_does() -> None:
    machine = _machine()
    _join(machine)
    assert machine.step(PollOverdue(), 0) == (Removed(RemovalCause.POLL_OVERDUE), Lost(), SendLeave("m1"))
    assert machine.step(Polled(), 0) == (SendJoin(""),)
