from functools import partial

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.replication.watchers import Change, OffsetWaiters, Watchers

ROLE, LOG_END = Change.ROLE, Change.LOG_END


class Named:
    def __init__(self, name: str, changes: list[tuple[str, str, int]]) -> None:
        self._name = name
        self._changes = changes

    def changed(self, subject: str, kinds: int) -> None:
        self._changes.append((self._name, subject, kinds))


def test_watchers_are_notified_in_order_each_of_the_kinds_that_it_wants() -> None:
    watchers, changes = Watchers("x"), list[tuple[str, str, int]]()
    a, b, c = (Named(name, changes) for name in "abc")
    watchers.add(a, ROLE)
    watchers.add(b, LOG_END)
    watchers.add(c, ROLE | LOG_END)
    watchers.notify(LOG_END)
    watchers.notify(ROLE | LOG_END)
    assert changes == [
        ("b", "x", LOG_END),
        ("c", "x", LOG_END),
        *((name, "x", ROLE | LOG_END) for name in "abc"),
    ]


def test_a_watcher_stays_until_it_is_removed_and_counts_once() -> None:
    watchers, changes = Watchers("x"), list[tuple[str, str, int]]()
    a, b = (Named(name, changes) for name in "ab")
    for _ in range(2):
        watchers.add(a, ROLE)
    watchers.add(b, LOG_END)
    for _ in range(2):
        watchers.notify(ROLE)
    assert changes == 2 * [("a", "x", ROLE)]
    watchers.remove(a)
    watchers.remove(a)
    assert watchers.wanted & LOG_END
    watchers.notify(ROLE)
    watchers.remove(b)
    assert watchers.wanted == 0
    assert len(changes) == 2


def test_a_watcher_may_remove_itself_and_add_others_while_it_is_notified() -> None:
    watchers, changes = Watchers("x"), list[tuple[str, str, int]]()
    late = Named("late", changes)

    class Leaving(Named):
        def changed(self, subject: str, kinds: int) -> None:
            super().changed(subject, kinds)
            watchers.remove(self)
            watchers.add(late, kinds)

    watchers.add(Leaving("a", changes), ROLE)
    watchers.add(Named("b", changes), ROLE)
    watchers.notify(ROLE)
    assert [name for name, _, _ in changes] == ["a", "b"]
    watchers.notify(ROLE)
    assert [name for name, _, _ in changes[2:]] == ["b", "late"]


def test_waiters_are_called_once_and_in_the_order_of_their_offsets() -> None:
    called: list[int] = []
    waiters = OffsetWaiters()
    for offset in (5, 3, 9, 3):
        waiters.add(offset, partial(lambda offset, _: called.append(offset), offset))
    waiters.reached(5)
    assert called == [3, 3, 5]
    waiters.reached(5)
    assert called == [3, 3, 5]
    assert len(waiters) == 1


def test_waiters_for_the_same_offset_are_called_in_the_order_in_which_they_came() -> None:
    called: list[str] = []
    waiters = OffsetWaiters()
    for name, offset in (("a", 2), ("late", 7), ("b", 2), ("c", 2)):
        waiters.add(offset, partial(lambda name, _: called.append(name), name))
    waiters.reached(2)
    assert called == ["a", "b", "c"]


def test_a_waiter_that_waits_again_from_its_callback_is_not_lost() -> None:
    called: list[int] = []
    waiters = OffsetWaiters()
    waiters.add(1, lambda _: waiters.add(2, lambda _: called.append(2)))
    waiters.reached(1)
    waiters.reached(2)
    assert called == [2]


def test_a_failure_is_raised_to_all_and_ends_their_wait() -> None:
    errors: list[KafkaError | None] = []
    waiters = OffsetWaiters()
    waiters.add(1, errors.append)
    waiters.add(2, errors.append)
    error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    waiters.fail(error)
    waiters.reached(9)
    assert errors == [error, error]


def test_a_cancelled_callback_does_not_run_and_the_others_do() -> None:
    called: list[str] = []
    first, second, third = (partial(_called, called, name) for name in "abc")
    waiters = OffsetWaiters()
    for offset, waiter in ((2, first), (2, second), (3, third), (3, first)):
        waiters.add(offset, waiter)
    waiters.remove(2, first)
    waiters.remove(3, second)
    waiters.remove(9, third)
    waiters.reached(9)
    assert called == ["b", "c", "a"]


@pytest.mark.parametrize("end", ["reached", "failed"])
def test_a_waiter_that_fails_holds_back_no_other_waiter(end: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nor the caller, which may be the fetch of a follower or the end of a flush round."""
    called: list[str] = []
    waiters = OffsetWaiters()
    waiters.add(1, partial(_called, called, "a"))
    waiters.add(2, _failing)
    waiters.add(3, _failing)
    waiters.add(4, partial(_called, called, "b"))
    if end == "reached":
        waiters.reached(9)
    else:
        waiters.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert called == ["a", "b"]
    assert caplog.text.count("event=waiter-failed") == caplog.text.count("OSError: no such file") == 2
    assert len(waiters) == 0


def test_a_watcher_that_fails_holds_back_no_other_watcher(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Named):
        def changed(self, subject: str, kinds: int) -> None:
            super().changed(subject, kinds)
            _failing(None)

    watchers, changes = Watchers("x"), list[tuple[str, str, int]]()
    for watcher in (Failing("a", changes), Named("b", changes)):
        watchers.add(watcher, ROLE)
    watchers.notify(ROLE)
    assert [name for name, _, _ in changes] == ["a", "b"]
    assert "event=watcher-failed" in caplog.text


def test_a_broken_invariant_of_a_waiter_is_raised_at_once() -> None:
    called: list[str] = []

    def broken(_: object) -> None:
        raise AssertionError

    waiters = OffsetWaiters()
    waiters.add(1, broken)
    waiters.add(1, partial(_called, called, "a"))
    with pytest.raises(AssertionError):
        waiters.reached(1)
    assert called == []


def _failing(_: object) -> None:
    raise OSError("no such file")


def _called(called: list[str], name: str, _: object) -> None:
    called.append(name)
