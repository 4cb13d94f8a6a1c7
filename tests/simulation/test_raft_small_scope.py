"""Every order in which a few things can happen to a small quorum: no law is broken in any of them.

Larger scopes: `python -m tailrace.testing.simulation scope --writes 2 --crashes 1 --max-states 1000000`.
"""

import pytest

from tailrace.raft.leadership import Leadership
from tailrace.testing.simulation.raft_scope import Budget, model, quorum, settle
from tailrace.testing.simulation.small_scope import Explored, ScopeBreach, explore


def search(size: int, budget: Budget, *, instant_disk: bool, max_states: int = 20_000) -> Explored:
    found = explore(model(), settle(quorum(size, budget, instant_disk=instant_disk)), max_states=max_states)
    print(f"{size} voters, {budget}, instant disk {instant_disk}: {found}")  # noqa: T201
    return found


@pytest.mark.parametrize(
    ("size", "budget", "instant_disk", "reached"),
    [
        (3, Budget(writes=1), False, {"a write is committed"}),
        (3, Budget(writes=2), True, {"a write is committed"}),
        (3, Budget(crashes=1), False, set()),
        (2, Budget(timeouts=1, writes=1), False, {"a write is committed"}),
    ],
    ids=str,
)
def test_every_order_of_a_few_things(size: int, budget: Budget, instant_disk: bool, reached: set[str]) -> None:
    found = search(size, budget, instant_disk=instant_disk)
    assert found.is_complete
    assert reached <= found.sometimes


def test_the_search_finds_a_leader_that_counts_itself_before_its_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Leadership._durable_end

    def early(self, leader, key):
        return self._replica.end_offset if key == self._replica.key else original(self, leader, key)

    monkeypatch.setattr(Leadership, "_durable_end", early)
    with pytest.raises(ScopeBreach, match="on a majority's disks") as caught:
        search(3, Budget(writes=1), instant_disk=False)
    assert any(action.startswith("writes of 1") for action in caught.value.actions)
