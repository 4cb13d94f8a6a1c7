"""A sink, two runs, two tasks: every order of a few things, and every crash of the coordinator (decision 0063).

Larger scopes: `make soak`, or `python -m simulation scopes --only sinks`.
"""

import pytest

from simulation.harness.small_scope import explore
from simulation.sinks.scope import SinkScope
from simulation.sinks.scopes import SHORT_SCOPES, NamedBudget

REACHED = {
    "one run, every crash": {"a decision is lost with the coordinator", "another coordinator writes the markers"},
    "two batches, all things late": {"batch 1 is acknowledged to r1", "a producer id is used again"},
    "a second attempt": {"a task is refused: DUPLICATE_SEQUENCE_NUMBER", "a task is refused: PRODUCER_FENCED"},
    "a second attempt, a timeout, every crash": {
        "a driver is refused: PRODUCER_FENCED",
        "a driver is refused: INVALID_PRODUCER_ID_MAPPING",
    },
    "two runs": {"batch 0 is acknowledged to r2", "a driver is refused: PRODUCER_FENCED"},
}
"""The states that a scope must have reached, beside that a batch is acknowledged, also a second time."""


@pytest.mark.parametrize("scope", SHORT_SCOPES, ids=lambda scope: scope.name)
def test_every_order_of_a_few_things(scope: NamedBudget) -> None:
    model = SinkScope()
    found = explore(model, model.start(scope.budget), max_states=20_000)
    print(f"{scope.name}: {found.summary()}")  # noqa: T201
    assert found.is_complete
    reached = {"batch 0 is acknowledged to r1", "a decided batch is answered again", *REACHED[scope.name]}
    assert reached <= found.sometimes
