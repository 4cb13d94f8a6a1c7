"""The lags of groups for a page of metrics: partitions of other leaders, partitions that are not known, the limit."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.coordinators.groups.records import OffsetCommitValue
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.node.metrics import group_lags
from tailrace.node.metrics.group_lags import measure_lags

Offsets = Mapping[TopicPartition, int]
OTHER = BrokerId(2)


def at(offset: int) -> OffsetCommitValue:
    return OffsetCommitValue(offset=offset, metadata="", commit_timestamp=0)


class MeasuredGroups:
    """The groups of a coordinator, as far as their offsets matter."""

    def __init__(self, groups: Mapping[str, Offsets]) -> None:
        self.ranged_offsets = None
        reports = SimpleNamespace(offsets=lambda group: {where: at(to) for where, to in groups[group].items()})
        self._host = SimpleNamespace(machine=SimpleNamespace(committed=SimpleNamespace(groups=groups), reports=reports))

    def active_hosts(self) -> list[Any]:
        return [self._host]


class MeasuredLeaders:
    """Partitions whose logs end at offset 100; the odd ones have another leader."""

    def __init__(self, *, unknown: Iterable[TopicPartition] = (), is_silent: bool = False) -> None:
        self.unknown = set(unknown)
        self.is_silent = is_silent
        self.asked: list[tuple[BrokerId, Offsets]] = []

    def new_scan(self) -> Any:
        return SimpleNamespace(is_over=False)

    def other_leader(self, partition: TopicPartition) -> BrokerId | None:
        return OTHER if partition.partition % 2 else None

    def here(self, partition: TopicPartition, committed: int, budget: Any) -> int | None:
        assert self.other_leader(partition) is None
        return None if partition in self.unknown else 100 - committed

    def ask(self, leader: BrokerId, committed: Offsets, on_known: Callable[[Offsets], None]) -> None:
        self.asked.append((leader, committed))
        if not self.is_silent:
            known = {where: 100 - offset for where, offset in committed.items() if where not in self.unknown}
            asyncio.get_running_loop().call_soon(on_known, known)


def measured(groups: Mapping[str, Offsets], leaders: MeasuredLeaders) -> Mapping[tuple[str, str], int]:
    found: Any = measure_lags(MeasuredGroups(groups), leaders)  # type: ignore[arg-type]
    return asyncio.run(found)


A, B = ({TopicPartition(name, number): 90 - number for number in range(4)} for name in ("a", "b"))


def test_the_lags_of_a_topic_are_one_sum_over_all_leaders() -> None:
    leaders = MeasuredLeaders()
    assert measured({"g": {**A, **B}, "h": A}, leaders) == {("g", "a"): 46, ("g", "b"): 46, ("h", "a"): 46}
    assert [leader for leader, _ in leaders.asked] == [OTHER] * 2, "one question for each group"


@pytest.mark.parametrize("number", [0, 1])
def test_a_topic_with_an_unknown_partition_has_no_row(number: int) -> None:
    leaders = MeasuredLeaders(unknown=[TopicPartition("a", number)])
    assert measured({"g": {**A, **B}}, leaders) == {("g", "b"): 46}


def test_a_leader_that_does_not_answer_holds_the_page_up_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lags, "_ANSWER_S", 0.01)
    even = {where: offset for where, offset in B.items() if not where.partition % 2}
    assert measured({"g": {**A, **even}}, MeasuredLeaders(is_silent=True)) == {("g", "b"): 22}


def test_groups_beyond_the_limit_have_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lags, "MOST_LAGS", 7)
    assert measured({"g": A, "h": A}, MeasuredLeaders()) == {("g", "a"): 46}


def test_a_coordinator_without_groups_asks_no_leader() -> None:
    leaders = MeasuredLeaders()
    assert measured({}, leaders) == {}
    assert leaders.asked == []
