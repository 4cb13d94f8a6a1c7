from tailrace.replication.watchers import Change, Watchers

ROLE, LOG_END = Change.ROLE, Change.LOG_END


class Named:
    def __init__(self, name: str, told: list[tuple[str, str, int]]) -> None:
        self._name = name
        self._told = told

    def changed(self, subject: str, kinds: int) -> None:
        self._told.append((self._name, subject, kinds))


def test_watchers_are_told_in_order_each_of_the_kinds_that_it_wants() -> None:
    watchers, told = Watchers("x"), list[tuple[str, str, int]]()
    a, b, c = (Named(name, told) for name in "abc")
    watchers.add(a, ROLE)
    watchers.add(b, LOG_END)
    watchers.add(c, ROLE | LOG_END)
    watchers.tell(LOG_END)
    watchers.tell(ROLE | LOG_END)
    assert told == [
        ("b", "x", LOG_END),
        ("c", "x", LOG_END),
        *((name, "x", ROLE | LOG_END) for name in "abc"),
    ]


def test_a_watcher_stays_until_it_is_removed_and_counts_once() -> None:
    watchers, told = Watchers("x"), list[tuple[str, str, int]]()
    a, b = (Named(name, told) for name in "ab")
    for _ in range(2):
        watchers.add(a, ROLE)
    watchers.add(b, LOG_END)
    for _ in range(2):
        watchers.tell(ROLE)
    assert told == 2 * [("a", "x", ROLE)]
    watchers.remove(a)
    watchers.remove(a)
    assert watchers.wanted & LOG_END
    watchers.tell(ROLE)
    watchers.remove(b)
    assert watchers.wanted == 0
    assert len(told) == 2


def test_a_watcher_may_remove_itself_and_add_others_while_it_is_told() -> None:
    watchers, told = Watchers("x"), list[tuple[str, str, int]]()
    late = Named("late", told)

    class Leaving(Named):
        def changed(self, subject: str, kinds: int) -> None:
            super().changed(subject, kinds)
            watchers.remove(self)
            watchers.add(late, kinds)

    watchers.add(Leaving("a", told), ROLE)
    watchers.add(Named("b", told), ROLE)
    watchers.tell(ROLE)
    assert [name for name, _, _ in told] == ["a", "b"]
    watchers.tell(ROLE)
    assert [name for name, _, _ in told[2:]] == ["b", "late"]
