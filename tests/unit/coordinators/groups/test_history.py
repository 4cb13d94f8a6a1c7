"""The history of a group: events with their causes, and movement of committed offsets."""

from tailrace.coordinators.groups.group import GroupState
from tailrace.coordinators.groups.history import (
    HISTORY_LENGTH,
    WINDOW_MS,
    GroupEvent,
    GroupEventKind,
    GroupHistory,
    OffsetProgress,
    ProgressBook,
)
from tailrace.coordinators.groups.records import OffsetCommitValue, OffsetRecord
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from testkit.coordinators.group_coordinator import GroupScene

K = GroupEventKind


def _events(scene: GroupScene) -> tuple[GroupEvent, ...]:
    return scene.coordinator.reports.insight("g", now_ms=scene.now_ms, wall_ms=scene.wall_ms).events


def _of_kinds(scene: GroupScene, *kinds: GroupEventKind) -> list[tuple[GroupEventKind, str, str]]:
    return [(event.kind, event.member_id, event.reason) for event in _events(scene) if event.kind in kinds]


def test_the_history_of_a_group_is_in_order() -> None:
    scene = GroupScene()
    (a, b), _ = scene.form_group("a", "b")
    scene.leave(b)
    kinds = [event.kind for event in _events(scene)]
    assert kinds[:2] == [K.JOIN, K.REBALANCE]
    assert kinds[-2:] == [K.LEAVE, K.REBALANCE]
    assert K.ASSIGNED in kinds
    assert _of_kinds(scene, K.REBALANCE)[-1][2] == f"{b} left"
    assert "of client 'c' at /127.0.0.1" in _of_kinds(scene, K.JOIN)[0][2]
    assert _of_kinds(scene, K.GENERATION)[-1][2].startswith("generation 1: members: 2, protocol: range, leader: " + a)


def test_an_end_of_session_names_its_timeout() -> None:
    scene = GroupScene()
    (a,), _ = scene.form_group("a", session_timeout_ms=10_000)
    scene.pass_time(10_000)
    assert scene.state is GroupState.EMPTY
    assert _of_kinds(scene, K.EXPIRED) == [(K.EXPIRED, a, "no heartbeat within session.timeout.ms=10000")]
    assert _of_kinds(scene, K.REBALANCE)[-1][2] == f"{a} expired"


def test_a_late_rejoin_names_the_rebalance_timeout() -> None:
    scene = GroupScene()
    (a, b), generation_id = scene.form_group("a", "b", rebalance_timeout_ms=5_000, session_timeout_ms=60_000)
    scene.join(a, protocols={"range": b"other"}, rebalance_timeout_ms=5_000, session_timeout_ms=60_000)
    scene.pass_time(5_000)
    ((_, member, reason),) = _of_kinds(scene, K.EXPIRED)
    assert (member, "it did not join again within rebalance.timeout.ms=5000" in reason) == (b, True)
    assert _of_kinds(scene, K.REBALANCE)[-1][2] == f"{a} changed its subscription or protocols"
    assert scene.heartbeat(b, generation_id) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_fenced_static_member_is_recorded_with_its_successor() -> None:
    scene = GroupScene()
    (a,), generation_id = scene.form_group("a")
    first = scene.join(instance_id="i")
    scene.join(a)
    member = scene.join_answer(first).member_id
    scene.sync(a, generation_id + 1, {})
    scene.join(instance_id="i")
    assert scene.heartbeat(member, generation_id + 1, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    fenced = _of_kinds(scene, K.FENCED)
    assert fenced[0][:2] == (K.FENCED, member)
    assert "another process came as 'i'" in fenced[0][2]
    assert fenced[1] == (K.FENCED, member, "Heartbeat: its group.instance.id is another's now")


def test_refused_requests_are_recorded_and_repetitions_counted() -> None:
    scene = GroupScene()
    (a,), _ = scene.form_group("a")
    for _ in range(3):
        scene.coordinator.record_refused_commit("g", a, ErrorCode.ILLEGAL_GENERATION, scene.now_ms)
        scene.pass_time(10)
    last = _events(scene)[-1]
    assert (last.kind, last.reason, last.count) == (K.REFUSED, "OffsetCommit: ILLEGAL_GENERATION", 3)
    assert last.last_at_ms - last.first_at_ms == 20
    scene.join(scene.new_id(), protocols={"other": b""})
    assert _events(scene)[-1].reason == "JoinGroup: INCONSISTENT_GROUP_PROTOCOL"


def test_a_taken_over_group_says_where_its_history_begins() -> None:
    scene = GroupScene()
    scene.form_group("a")
    again = GroupScene(log=scene.log)
    assert [(event.kind, event.reason) for event in _events(again)] == [
        (K.LOADED, "this broker took over the group in generation 1")
    ]


def test_the_history_is_bounded() -> None:
    history = GroupHistory()
    for number in range(HISTORY_LENGTH + 7):
        history.add(K.LEAVE, number, f"reason {number}")
    assert len(history.events) == HISTORY_LENGTH
    assert history.events[0].reason == "reason 7"


def test_a_deleted_groups_history_is_gone() -> None:
    scene = GroupScene()
    (a,), _ = scene.form_group("a")
    scene.leave(a)
    assert any(a in event.reason for event in _events(scene))
    assert scene.delete_group() is ErrorCode.NONE
    scene.form_group("b")
    assert _events(scene)
    assert not any(a in event.reason for event in _events(scene))


def test_a_name_takes_no_more_room_than_a_reason() -> None:
    history = GroupHistory()
    history.add(K.REFUSED, 0, "why", "x" * 8_000)
    assert len(history.events[0].member_id) == 255


def test_no_reason_is_longer_than_a_few_names() -> None:
    history = GroupHistory()
    history.add(K.JOIN, 0, "a new member of client " + "x" * 32_000)
    assert len(history.events[0].reason) == 1_000
    assert history.events[0].reason.startswith("a new member")


def _commit(offset: int | None, at_ms: int = 0) -> OffsetRecord:
    value = None if offset is None else OffsetCommitValue(offset=offset, metadata="", commit_timestamp=at_ms)
    return OffsetRecord(group_id="g", topic="t", partition=0, value=value)


def test_a_repeated_commit_is_no_progress() -> None:
    progress = OffsetProgress(5, 1_000)
    progress.commit(5, 2_000)
    assert progress.moved_at_ms == 1_000
    progress.commit(6, 3_000)
    assert progress.moved_at_ms == 3_000


def test_the_pace_is_measured_over_a_window() -> None:
    progress = OffsetProgress(0, 0)
    for second in range(1, 101):
        progress.commit(second * 10, second * 1_000)
    assert WINDOW_MS <= progress.moved_at_ms - progress.earlier_at_ms < 2 * WINDOW_MS + 1_000
    consumed = progress.offset - progress.earlier_offset
    assert consumed == (progress.moved_at_ms - progress.earlier_at_ms) // 100


def test_going_back_starts_anew() -> None:
    progress = OffsetProgress(0, 0)
    progress.commit(100, 40_000)
    progress.commit(10, 50_000)
    assert (progress.earlier_offset, progress.earlier_at_ms, progress.moved_at_ms) == (10, 50_000, 50_000)


def test_a_forgotten_offset_leaves_nothing() -> None:
    book = ProgressBook()
    book.apply(_commit(1))
    assert book.of("g")[TopicPartition("t", 0)].offset == 1
    book.apply(_commit(None))
    book.apply(_commit(None))
    assert not book.of("g")
