"""The number of examples that a search may try in each run, and how many times as many in `make soak`.

`make test` runs what has found every known fault in little time; `make soak` multiplies each count by MODEL_RUNS.
"""

import os

import pytest
from _pytest.mark.structures import ParameterSet

from turns import TURNS

MODEL_RUNS = int(os.environ.get("MODEL_RUNS", "0"))
"""Multiple of the usual number of examples, by chance; 0 for the usual examples, always the same."""


def examples(usual: int) -> int:
    """The examples of a property, or the seeds of a simulation."""
    return usual * (MODEL_RUNS or 1)


def blocks(usual: int, first: int = 0) -> list[ParameterSet]:
    """Cases of a simulation, a range of seeds each: one block in each turn, from `first` on. `make soak` has one case.

    The first block has `usual` seeds, few that reach every state; a test looks for the states in that block alone. The
    other blocks have three fifths as many.
    """
    if MODEL_RUNS:
        return [pytest.param(range(first, first + usual * MODEL_RUNS), id="all")]
    size = -(-usual * 3 // 5)
    starts = [first + usual + size * number for number in range(TURNS - 1)]
    seeds = [range(first, first + usual), *(range(start, start + size) for start in starts)]
    return [
        pytest.param(block, marks=pytest.mark.in_turn(number), id=f"from-{block.start}")
        for number, block in enumerate(seeds)
    ]
