"""The position of a consumer in one partition: its comparison with the leader's log, and an offset out of range."""

import pytest

from tailrace.client.reading.position import FetchPosition, PositionState, Recourse, Truncation


def _at(offset: int, epoch: int = -1, *, leader_epoch: int = 5) -> FetchPosition:
    """A position that is valid under this leader epoch."""
    position = FetchPosition()
    position.start_at(offset, epoch, valid_under=leader_epoch)
    assert position.check_leader(leader_epoch)
    return position


def _validating(offset: int, epoch: int, *, leader_epoch: int = 6) -> FetchPosition:
    position = _at(offset, epoch)
    assert not position.check_leader(leader_epoch)
    return position


def test_a_position_begins_undecided_and_may_not_be_fetched() -> None:
    position = FetchPosition()
    assert position.is_undecided
    assert not position.check_leader(0)
    assert position.is_undecided


def test_a_position_is_validated_under_a_new_leader_epoch_and_not_again_under_that() -> None:
    position = _at(10, 3)
    assert not position.check_leader(6)
    assert position.state is PositionState.AWAITING_VALIDATION
    assert position.validated(3, 10, leader_epoch=6, resets=True) is None
    assert position.check_leader(6)
    assert not position.check_leader(7)


def test_a_new_epoch_during_a_validation_has_it_repeated() -> None:
    position = _validating(10, 3, leader_epoch=6)
    position.validated(3, 10, leader_epoch=6, resets=True)
    assert not position.check_leader(7)


def test_a_position_without_an_epoch_is_not_validated() -> None:
    position = FetchPosition()
    position.start_at(10)
    for leader_epoch in (5, 6):
        assert position.check_leader(leader_epoch)


def test_a_committed_position_with_an_epoch_is_validated_before_its_first_fetch() -> None:
    position = FetchPosition()
    position.start_at(10, 3)
    assert not position.check_leader(5)


def test_a_position_is_valid_under_the_leader_epoch_of_its_last_fetch_alone() -> None:
    position = _at(10, 3, leader_epoch=5)
    assert [position.is_valid_under(epoch) for epoch in (4, 5, 6, -1)] == [False, True, False, True]
    assert not position.check_leader(6)
    assert not position.is_valid_under(5)


def test_a_server_without_leader_epochs_has_no_position_validated() -> None:
    position = FetchPosition()
    position.start_at(10, 3)
    assert position.check_leader(-1)


def test_a_topic_that_was_created_again_begins_at_a_lower_epoch_and_is_validated() -> None:
    assert not _at(10, 3, leader_epoch=5).check_leader(0)


def test_records_move_the_position_and_its_epoch() -> None:
    position = _at(10, 3)
    position.advance(20, 4)
    assert (position.offset, position.offset_epoch) == (20, 4)
    position.advance(20, -1)  # an answer without a batch
    assert (position.offset, position.offset_epoch) == (20, 4)


@pytest.mark.parametrize("end", [10, 11, 1_000])
@pytest.mark.parametrize("epoch", [2, 3])
def test_a_log_that_reaches_the_position_makes_it_valid(epoch: int, end: int) -> None:
    position = _validating(10, 3)
    assert position.validated(epoch, end, leader_epoch=6, resets=False) is None
    assert (position.state, position.offset, position.offset_epoch) == (PositionState.FETCHING, 10, 3)


@pytest.mark.parametrize("epoch", [2, 3])
def test_a_log_that_ends_before_the_position_has_it_go_on_where_they_diverge(epoch: int) -> None:
    position = _validating(10, 3)
    assert position.validated(epoch, 9, leader_epoch=6, resets=True) == Truncation(10, 3, 9)
    assert (position.state, position.offset, position.offset_epoch) == (PositionState.FETCHING, 9, epoch)
    assert position.check_leader(6)  # the leader has just named it


def test_a_truncation_without_a_reset_policy_is_kept_until_a_seek() -> None:
    position = _validating(10, 3)
    truncation = position.validated(2, 8, leader_epoch=6, resets=False)
    assert (position.state, position.truncation) == (PositionState.AWAITING_RESET, truncation)
    assert truncation == Truncation(10, 3, 8)
    position.start_at(8)
    assert (position.state, position.truncation) == (PositionState.FETCHING, None)


@pytest.mark.parametrize("resets", [True, False])
@pytest.mark.parametrize(("epoch", "end"), [(-1, -1), (-1, 10), (3, -1)])
def test_a_leader_without_such_an_epoch_leaves_the_position_to_the_reset_policy(
    resets: bool, epoch: int, end: int
) -> None:
    position = _validating(10, 3)
    assert position.validated(epoch, end, leader_epoch=6, resets=resets) == Truncation(10, 3, None)
    assert position.state is PositionState.AWAITING_RESET


def test_a_leader_that_is_too_old_ends_the_validation() -> None:
    position = _validating(10, 3)
    position.skip_validation(6)
    assert position.check_leader(6)


# OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("epoch", "log_start", "by_leader", "recourse", "state"),
    [
        (3, 11, False, Recourse.RESET_AT_REPLICA, PositionState.AWAITING_RESET),
        (-1, 11, False, Recourse.RESET_AT_REPLICA, PositionState.AWAITING_RESET),
        (3, 11, True, Recourse.RESET, PositionState.AWAITING_RESET),
        (3, 10, False, Recourse.VALIDATE, PositionState.AWAITING_VALIDATION),
        (3, 0, False, Recourse.VALIDATE, PositionState.AWAITING_VALIDATION),
        (-1, 0, False, Recourse.RESET, PositionState.AWAITING_RESET),
        (3, 0, True, Recourse.VALIDATE, PositionState.AWAITING_VALIDATION),
        (3, -1, True, Recourse.VALIDATE, PositionState.AWAITING_VALIDATION),
        (-1, -1, True, Recourse.RESET, PositionState.AWAITING_RESET),
        (3, -1, False, Recourse.ASK_LEADER, PositionState.FETCHING),
        (-1, -1, False, Recourse.ASK_LEADER, PositionState.FETCHING),
    ],
)
def test_an_offset_out_of_range_has_the_consequence_of_kip_392(
    epoch: int, log_start: int, by_leader: bool, recourse: Recourse, state: PositionState
) -> None:
    position = _at(10, epoch)
    assert position.refused(log_start, by_leader=by_leader) is recourse
    assert position.state is state


def test_an_offset_that_only_a_follower_refuses_is_fetched_on() -> None:
    position = _at(10, 3)
    position.refused(0, by_leader=False)
    position.validated(3, 10, leader_epoch=5, resets=True)
    assert position.check_leader(5)


def test_an_offset_that_the_leader_refuses_though_nothing_is_truncated_goes_to_the_reset_policy() -> None:
    """The records behind the position were deleted, and the leader does not say where its log starts."""
    position = _at(10, 3)
    position.refused(-1, by_leader=True)
    assert position.validated(3, 50, leader_epoch=5, resets=True) is None
    assert (position.state, position.truncation) == (PositionState.AWAITING_RESET, None)


def test_a_refusal_is_forgotten_with_the_position() -> None:
    position = _at(10, 3)
    position.refused(-1, by_leader=True)
    position.start_at(20, 3, valid_under=5)
    assert not position.check_leader(6)
    position.validated(3, 20, leader_epoch=6, resets=True)
    assert position.state is PositionState.FETCHING


def test_a_position_is_displaced_if_the_log_did_not_have_the_one_before() -> None:
    position = _at(10, 3)
    assert not position.is_displaced
    position.refused(50, by_leader=True)
    position.start_at(50)
    assert position.is_displaced, "by a reset"
    position.start_at(60)
    assert not position.is_displaced, "it was sought"
    position = _validating(10, 3)
    position.validated(3, 7, leader_epoch=6, resets=True)
    assert (position.offset, position.is_displaced) == (7, True)


def test_a_position_in_doubt_is_compared_with_the_log_once_more() -> None:
    position = _at(10, 3)
    position.doubt()
    assert position.state is PositionState.AWAITING_VALIDATION
    assert position.validated(3, 10, leader_epoch=5, resets=True) is None
    assert position.check_leader(5)
    without_epoch = _at(10)
    without_epoch.doubt()
    assert without_epoch.state is PositionState.FETCHING
