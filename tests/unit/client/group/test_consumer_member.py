"""A member of a group by KIP-848: joining, reconciling, fences, and the end."""

from collections.abc import Sequence

import pytest

from tailrace.client.group.consumer_member import (
    ConsumerEffect,
    ConsumerHeartbeatAnswered,
    ConsumerMembership,
    ConsumerState,
    Own,
    Partitions,
    Release,
    Released,
    SendConsumerHeartbeat,
    SendConsumerLeave,
    TargetGiven,
    TopicIdPartition,
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
from tailrace.model.ids import TopicId
from tailrace.model.machines import Tick

SESSION_MS, HEARTBEAT_MS, BACKOFF_MS = 45_000, 5_000, 100
ORDERS = TopicId(b"o" * 16)
NOTHING: Partitions = frozenset()
P0, P1, P2 = (TopicIdPartition(ORDERS, number) for number in range(3))
JOIN = SendConsumerHeartbeat(0, NOTHING, is_full=True)


def _machine(*, is_static: bool = False) -> ConsumerMembership:
    return ConsumerMembership(session_timeout_ms=SESSION_MS, retry_backoff_ms=BACKOFF_MS, is_static=is_static)


def _ok(epoch: int) -> ConsumerHeartbeatAnswered:
    return ConsumerHeartbeatAnswered(code=ErrorCode.NONE, member_epoch=epoch, heartbeat_interval_ms=HEARTBEAT_MS)


def _joined(*partitions: TopicIdPartition, is_static: bool = False) -> ConsumerMembership:
    """A member in epoch 1 that owns these partitions, and has told the coordinator so at 0 ms."""
    machine = _machine(is_static=is_static)
    machine.step(Polled(), 0)
    machine.step(_ok(1), 0)
    machine.step(TargetGiven(frozenset(partitions)), 0)
    machine.step(Polled(), 0)
    machine.step(_ok(1), 0)
    assert machine.owned == frozenset(partitions)
    return machine


def _beats(effects: Sequence[ConsumerEffect]) -> list[SendConsumerHeartbeat]:
    return [effect for effect in effects if isinstance(effect, SendConsumerHeartbeat)]


def test_a_member_joins_with_epoch_0_its_subscription_and_no_partitions_when_its_user_polls() -> None:
    machine = _machine()
    assert machine.step(Tick(), 0) == ()
    assert machine.step(Polled(), 0) == (JOIN,)
    assert machine.step(Polled(), 0) == ()


def test_a_target_is_owned_at_the_next_poll_and_told_to_the_coordinator() -> None:
    machine = _machine()
    machine.step(Polled(), 0)
    assert machine.step(_ok(1), 0) == ()
    assert machine.step(TargetGiven(frozenset({P0, P1})), 0) == ()
    assert machine.step(Polled(), 5) == (Own(frozenset({P0, P1})), SendConsumerHeartbeat(1, frozenset({P0, P1}), False))


def test_a_member_without_a_partition_receives_that_assignment_once() -> None:
    machine = _machine()
    machine.step(Polled(), 0)
    machine.step(_ok(1), 0)
    machine.step(TargetGiven(NOTHING), 0)
    assert machine.step(Polled(), 0) == (Own(NOTHING), SendConsumerHeartbeat(1, NOTHING, False))
    machine.step(_ok(1), 0)
    assert machine.step(Polled(), 0) == ()


def test_a_heartbeat_without_news_names_no_partition() -> None:
    machine = _joined(P0)
    assert machine.next_deadline_ms == HEARTBEAT_MS
    assert machine.step(Tick(), HEARTBEAT_MS - 1) == ()
    assert machine.step(Tick(), HEARTBEAT_MS) == (SendConsumerHeartbeat(1, None, False),)
    assert machine.step(Tick(), HEARTBEAT_MS) == ()


def test_partitions_that_leave_are_released_and_named_until_then() -> None:
    """KIP-848: "it revokes the partitions ... and when it is done, it acknowledges the revocation"."""
    machine = _joined(P0, P1, P2)
    machine.step(Tick(), HEARTBEAT_MS)
    machine.step(_ok(1), HEARTBEAT_MS)
    machine.step(TargetGiven(frozenset({P2})), HEARTBEAT_MS)
    assert machine.step(Polled(), HEARTBEAT_MS) == (Release(frozenset({P0, P1})),)
    assert machine.step(Polled(), HEARTBEAT_MS) == ()
    assert machine.step(Tick(), 2 * HEARTBEAT_MS) == (SendConsumerHeartbeat(1, None, False),)
    assert machine.owned == {P0, P1, P2}
    machine.step(_ok(1), 2 * HEARTBEAT_MS)
    released = machine.step(Released(frozenset({P0, P1})), 2 * HEARTBEAT_MS + 7)
    assert released == (Own(frozenset({P2})), SendConsumerHeartbeat(1, frozenset({P2}), False))


def test_a_partition_that_comes_during_a_release_does_not_wait_for_its_end() -> None:
    machine = _joined(P0, P1)
    machine.step(TargetGiven(frozenset({P1})), 0)
    machine.step(Polled(), 0)
    machine.step(TargetGiven(frozenset({P1, P2})), 0)
    everything = frozenset({P0, P1, P2})
    assert machine.step(Polled(), 0) == (Own(frozenset({P1, P2})), SendConsumerHeartbeat(1, everything, False))
    machine.step(_ok(2), 0)
    released = machine.step(Released(frozenset({P0})), 0)
    assert released == (Own(frozenset({P1, P2})), SendConsumerHeartbeat(2, frozenset({P1, P2}), False))


def test_a_partition_that_leaves_during_a_release_does_not_wait_for_its_end() -> None:
    machine = _joined(P0, P1)
    machine.step(TargetGiven(frozenset({P1})), 0)
    machine.step(Polled(), 0)
    machine.step(TargetGiven(NOTHING), 0)
    assert machine.step(Polled(), 0) == (Release(frozenset({P1})),)
    machine.step(Released(frozenset({P1})), 0)
    assert machine.owned == machine.releasing == {P0}


def test_a_new_partition_is_not_read_before_the_answer_to_a_heartbeat_that_did_not_name_it() -> None:
    """The coordinator may have given P1 to another member when it heard that this member has it not yet."""
    machine = _joined(P0, P2)
    machine.step(TargetGiven(frozenset({P0, P1})), 0)
    machine.step(Polled(), 0)
    assert _beats(machine.step(Released(frozenset({P2})), 0)) == [SendConsumerHeartbeat(1, frozenset({P0}), False)]
    assert machine.step(Polled(), 0) == ()
    machine.step(ConsumerHeartbeatAnswered(code=ErrorCode.REQUEST_TIMED_OUT), 0)
    assert machine.step(Polled(), 0) == ()
    assert _beats(machine.step(Tick(), BACKOFF_MS)) == [SendConsumerHeartbeat(1, frozenset({P0}), True)]
    assert machine.step(Polled(), BACKOFF_MS) == ()
    machine.step(_ok(3), BACKOFF_MS)
    machine.step(TargetGiven(frozenset({P0})), BACKOFF_MS)
    assert machine.step(Polled(), BACKOFF_MS) == ()


def test_a_partition_that_comes_and_goes_between_two_polls_is_confirmed_as_not_owned() -> None:
    """The coordinator waits for a heartbeat without the partition, and removes the member at the rebalance timeout."""
    machine = _joined(P0)
    machine.step(Tick(), HEARTBEAT_MS)
    machine.step(_ok(2), HEARTBEAT_MS)
    machine.step(TargetGiven(frozenset({P0, P1})), HEARTBEAT_MS)
    machine.step(Tick(), 2 * HEARTBEAT_MS)
    machine.step(_ok(2), 2 * HEARTBEAT_MS)
    assert machine.step(TargetGiven(frozenset({P0})), 2 * HEARTBEAT_MS) == ()
    assert machine.step(Tick(), 3 * HEARTBEAT_MS) == (SendConsumerHeartbeat(2, frozenset({P0}), False),)
    machine.step(_ok(3), 3 * HEARTBEAT_MS)
    assert machine.step(Tick(), 4 * HEARTBEAT_MS) == (SendConsumerHeartbeat(3, None, False),)


def test_a_partition_that_comes_back_while_it_is_released_is_read_anew() -> None:
    machine = _joined(P0, P1)
    machine.step(TargetGiven(frozenset({P1})), 0)
    machine.step(Polled(), 0)
    machine.step(TargetGiven(frozenset({P0, P1})), 0)
    assert machine.step(Polled(), 0) == ()
    assert machine.step(Released(frozenset({P0})), 0)[0] == Own(frozenset({P1}))
    assert machine.step(Polled(), 0) == ()
    machine.step(_ok(1), 0)
    assert machine.step(Polled(), 0)[0] == Own(frozenset({P0, P1}))


def test_news_that_come_while_an_answer_is_awaited_follow_the_answer() -> None:
    machine = _joined(P0)
    machine.step(Tick(), HEARTBEAT_MS)
    machine.step(TargetGiven(frozenset({P0, P1})), HEARTBEAT_MS)
    assert machine.step(Polled(), HEARTBEAT_MS) == (Own(frozenset({P0, P1})),)
    assert machine.step(_ok(2), HEARTBEAT_MS + 3) == (SendConsumerHeartbeat(2, frozenset({P0, P1}), False),)


def test_a_changed_subscription_is_sent_at_once() -> None:
    machine = _joined(P0)
    assert machine.step(SubscriptionChanged(), 9) == (SendConsumerHeartbeat(1, frozenset({P0}), True),)
    assert machine.step(SubscriptionChanged(), 9) == ()
    assert machine.step(_ok(2), 9) == (SendConsumerHeartbeat(2, frozenset({P0}), True),)
    assert machine.step(_ok(2), 9) == ()


def test_after_a_lost_answer_the_next_heartbeat_names_everything_in_the_former_epoch() -> None:
    machine = _joined(P0)
    machine.step(Tick(), HEARTBEAT_MS)
    lost = ConsumerHeartbeatAnswered(code=ErrorCode.REQUEST_TIMED_OUT)
    assert machine.step(lost, HEARTBEAT_MS) == (ForgetCoordinator(),)
    assert machine.owned == {P0}
    again = HEARTBEAT_MS + BACKOFF_MS
    assert machine.next_deadline_ms == again
    assert machine.step(Tick(), again) == (SendConsumerHeartbeat(1, frozenset({P0}), True),)


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND]
)
def test_a_fenced_member_loses_all_at_once_and_joins_again_at_the_next_poll(code: ErrorCode) -> None:
    """KIP-848: "it must abandon all its partitions and rejoin"."""
    machine = _joined(P0, P1)
    machine.step(Tick(), HEARTBEAT_MS)
    removed, lost = machine.step(ConsumerHeartbeatAnswered(code=code), HEARTBEAT_MS)
    assert isinstance(removed, Removed)
    assert lost == Lost()
    assert machine.step(Tick(), 10 * HEARTBEAT_MS) == ()
    assert machine.step(Polled(), 10 * HEARTBEAT_MS) == (JOIN,)


def test_the_end_of_a_release_after_a_fence_changes_nothing() -> None:
    machine = _joined(P0, P1)
    machine.step(TargetGiven(frozenset({P1})), 0)
    machine.step(Polled(), 0)
    machine.step(Tick(), HEARTBEAT_MS)
    machine.step(ConsumerHeartbeatAnswered(code=ErrorCode.FENCED_MEMBER_EPOCH), HEARTBEAT_MS)
    assert machine.step(Released(frozenset({P0})), HEARTBEAT_MS) == ()
    assert machine.step(TargetGiven(frozenset({P0})), HEARTBEAT_MS) == ()
    assert machine.step(Polled(), HEARTBEAT_MS) == (JOIN,)


def test_a_coordinator_that_is_silent_for_a_session_may_have_given_the_partitions_away() -> None:
    machine = _joined(P0)
    machine.step(Tick(), HEARTBEAT_MS)
    assert machine.next_deadline_ms == SESSION_MS
    effects = machine.step(Tick(), SESSION_MS)
    assert effects == (ForgetCoordinator(), Removed(RemovalCause.SILENCE), Lost())
    assert machine.step(Polled(), SESSION_MS) == ()  # the last heartbeat may be answered yet
    assert machine.step(_ok(1), SESSION_MS) == ()
    assert machine.state is ConsumerState.OUTSIDE
    assert machine.step(Polled(), SESSION_MS) == (JOIN,)


@pytest.mark.parametrize(("is_static", "epoch"), [(False, -1), (True, -2)])
def test_a_member_that_is_not_polled_leaves_and_joins_again_at_the_next_poll(is_static: bool, epoch: int) -> None:
    machine = _joined(P0, is_static=is_static)
    effects = machine.step(PollOverdue(), HEARTBEAT_MS)
    assert effects == (Removed(RemovalCause.POLL_OVERDUE), Lost(), SendConsumerLeave(epoch))
    assert machine.step(Polled(), HEARTBEAT_MS) == (JOIN,)


@pytest.mark.parametrize(("is_static", "epoch"), [(False, -1), (True, -2)])
def test_a_member_that_is_closed_releases_its_partitions_under_heartbeats_and_leaves(
    is_static: bool, epoch: int
) -> None:
    machine = _joined(P0, P1, is_static=is_static)
    assert machine.step(Leave(), 0) == (Release(frozenset({P0, P1})),)
    assert machine.step(Tick(), HEARTBEAT_MS) == (SendConsumerHeartbeat(1, None, False),)
    assert machine.step(Released(frozenset({P0, P1})), HEARTBEAT_MS) == (Own(NOTHING), SendConsumerLeave(epoch))
    assert machine.state is ConsumerState.LEFT


def test_a_close_during_a_release_waits_for_both() -> None:
    machine = _joined(P0, P1)
    machine.step(TargetGiven(frozenset({P1})), 0)
    machine.step(Polled(), 0)
    assert machine.step(Leave(), 0) == (Release(frozenset({P1})),)
    assert not any(isinstance(effect, SendConsumerLeave) for effect in machine.step(Released(frozenset({P1})), 0))
    assert machine.step(Released(frozenset({P0})), 0) == (Own(NOTHING), SendConsumerLeave(-1))


def test_a_closed_member_subscribes_to_nothing_while_it_still_releases() -> None:
    """The partitions that are released have other members at once; a lost heartbeat is sent again."""
    machine = _joined(P0, P1, P2)
    machine.step(Leave(), 0)
    withdrawal = SendConsumerHeartbeat(1, frozenset({P1, P2}), is_full=True, is_withdrawn=True)
    assert machine.step(Released(frozenset({P0})), 1) == (Own(NOTHING), withdrawal)
    machine.step(ConsumerHeartbeatAnswered(code=ErrorCode.REQUEST_TIMED_OUT), 2)
    assert machine.step(Tick(), 2 + BACKOFF_MS) == (withdrawal,)
    machine.step(_ok(1), 3 + BACKOFF_MS)
    assert machine.step(Released(frozenset({P1})), 200) == (
        Own(NOTHING),
        SendConsumerHeartbeat(1, frozenset({P2}), False),
    )
    machine.step(_ok(1), 201)
    assert machine.step(Released(frozenset({P2})), 202) == (Own(NOTHING), SendConsumerLeave(-1))


def test_a_static_member_that_is_closed_keeps_its_subscription() -> None:
    machine = _joined(P0, P1, is_static=True)
    machine.step(Leave(), 0)
    assert machine.step(Released(frozenset({P0})), 1) == (
        Own(NOTHING),
        SendConsumerHeartbeat(1, frozenset({P1}), False),
    )


def test_a_member_that_is_fenced_while_it_leaves_has_left() -> None:
    machine = _joined(P0)
    machine.step(Leave(), 0)
    machine.step(Tick(), HEARTBEAT_MS)
    effects = machine.step(ConsumerHeartbeatAnswered(code=ErrorCode.UNKNOWN_MEMBER_ID), HEARTBEAT_MS)
    assert Lost() in effects
    assert machine.state is ConsumerState.LEFT


def test_a_member_outside_its_group_leaves_without_a_word() -> None:
    machine = _machine()
    assert machine.step(Leave(), 0) == ()
    assert machine.state is ConsumerState.LEFT


@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.UNRELEASED_INSTANCE_ID]
)
def test_a_join_that_may_succeed_later_is_tried_again(code: ErrorCode) -> None:
    machine = _machine()
    machine.step(Polled(), 0)
    machine.step(ConsumerHeartbeatAnswered(code=code), 0)
    assert machine.step(Polled(), BACKOFF_MS - 1) == ()
    assert machine.step(Polled(), 1_000) == (JOIN,)


@pytest.mark.parametrize(
    "code", [ErrorCode.UNSUPPORTED_VERSION, ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.FENCED_INSTANCE_ID]
)
def test_a_refusal_for_good_fails(code: ErrorCode) -> None:
    machine = _machine()
    machine.step(Polled(), 0)
    assert machine.step(ConsumerHeartbeatAnswered(code=code), 0) == (Failed(code),)
    assert machine.step(Polled(), 9_999) == ()


def test_a_member_that_another_process_has_replaced_fails_without_its_partitions() -> None:
    machine = _joined(P0, is_static=True)
    machine.step(Tick(), HEARTBEAT_MS)
    replaced = ConsumerHeartbeatAnswered(code=ErrorCode.FENCED_INSTANCE_ID)
    assert machine.step(replaced, HEARTBEAT_MS) == (Lost(), Failed(ErrorCode.FENCED_INSTANCE_ID))
