"""Servers alternate, warm-ups do not count, absent peers are named."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.peers.peer import TAILRACE, Absent
from benchmarks.results.figures import Bar, Chart, Column, Target
from benchmarks.results.rounds import Rounds


class Shown(list[tuple[str, str, str]]):
    def __call__(self, label: str, test: str, server: str, **quantities: float) -> None:
        self.append((label, test, server))


def test_every_round_is_shown_and_only_those_after_the_warm_ups_count() -> None:
    shown = Shown()
    rounds = Rounds(2, shown, warm_ups=2)
    for number in rounds:
        rounds.record("produce", "ours", rate=number)
    assert [label for label, _, _ in shown] == ["warm-up"] * 2 + ["round 1", "round 2"]
    assert rounds.samples.rounds("produce", "ours", "rate") == [1, 2]


def test_each_server_is_first_in_its_turn_and_all_take_part() -> None:
    rounds = Rounds(3, Shown(), warm_ups=1)
    turns = [rounds.in_turn(["a", "b", "c"]) for _ in rounds]
    assert {tuple(turn) for turn in turns} == {("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")}
    assert len({turn[0] for turn in turns[1:]}) == 3


def test_servers_stand_in_the_table_as_they_took_part_in_the_first_warm_up() -> None:
    rounds = Rounds(2, Shown(), warm_ups=1)
    order: list[str] = []
    for _ in rounds:
        for server in rounds.in_turn(["a", "b"]):
            order.append(server)
            rounds.record("produce", server, rate=1)
    assert [server for _, server in rounds.samples.rows()] == order[:2] == ["a", "b"]


@contextmanager
def absent() -> Iterator[str]:
    raise Absent("apt-get install peer")
    yield ""


@contextmanager
def present() -> Iterator[str]:
    yield "peer"


def test_an_absent_peer_is_named_once_with_what_would_bring_it() -> None:
    rounds = Rounds(1, Shown(), warm_ups=0)
    with ExitStack() as stack:
        assert rounds.enter(stack, "peer", absent()) == []
        assert rounds.enter(stack, "peer", absent()) == []
        assert rounds.enter(stack, "other", present()) == ["peer"]
    assert rounds.absent == ["peer is absent: apt-get install peer"]


def test_a_section_has_the_rounds_that_count_and_the_reasons_of_absent_peers() -> None:
    rounds = Rounds(2, Shown(), warm_ups=1)
    rounds.miss("peer", "apt-get install peer")
    for number in rounds:
        rounds.record("produce", TAILRACE, rate=number + 1)
    target = Target(test="produce", server=TAILRACE, quantity="rate", limit=3.0, unit="/s")
    section = rounds.section(
        "line", "A line", "Idle.", [Column("rate", "/s")], [target], chart=Chart("rate", "a second")
    )
    assert section.rows == (("produce", TAILRACE, "2"),)  # 2.5, even
    assert [verdict.measured for verdict in section.verdicts] == [2.5]
    assert section.absent == ("peer is absent: apt-get install peer",)
    assert (section.chart_head, section.bars) == ("a second", (Bar("produce", TAILRACE, [2, 3]),))
    bare = rounds.section("line", "A line", "Idle.", [Column("rate", "/s")])
    assert (bare.verdicts, bare.chart_head, bare.bars) == ((), "", ())
