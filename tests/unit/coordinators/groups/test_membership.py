"""The deadlines of a coordinator's groups."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.coordinators.groups.schedule import Schedule

GROUPS = st.sampled_from("abc")


@given(st.lists(st.tuples(GROUPS, st.none() | st.integers(0, 20))), st.integers(0, 20))
def test_the_last_deadline_of_each_group_decides_when_it_is_due(
    settings: list[tuple[str, int | None]], now_ms: int
) -> None:
    schedule: Schedule[str] = Schedule()
    last: dict[str, int | None] = {}
    for group_id, deadline_ms in settings:
        schedule.set(group_id, deadline_ms)
        last[group_id] = deadline_ms
    due = {group_id for group_id, deadline_ms in last.items() if deadline_ms is not None and deadline_ms <= now_ms}
    if due:
        assert schedule.next_deadline_ms is not None
        assert schedule.next_deadline_ms <= min(d for d in last.values() if d is not None)
    taken = schedule.take_due(now_ms)
    assert sorted(taken) == sorted(due)
    assert schedule.take_due(now_ms) == []


def test_nothing_is_due_when_nothing_is_set() -> None:
    assert Schedule().next_deadline_ms is None


def test_groups_that_come_and_go_do_not_pile_up() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.set("stays", 5)
    for number in range(10_000):
        schedule.set(f"group-{number}", 1_800_000 + number)
        schedule.set(f"group-{number}", None)
    assert len(schedule) < 200
    assert schedule.take_due(5) == ["stays"]
