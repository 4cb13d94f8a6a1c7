"""The number of examples that a search may try in each run, and how many times as many in `make soak`.

`make test` runs what has found every known fault in little time; `make soak` multiplies each count by MODEL_RUNS.
"""

import os

import pytest
from _pytest.mark.structures import ParameterSet

MODEL_RUNS = int(os.environ.get("MODEL_RUNS", "0"))
"""Multiple of the usual number of examples, by chance; 0 for the usual examples, always the same."""


def examples(usual: int) -> int:
    """The examples of a property, or the seeds of a simulation."""
    return usual * (MODEL_RUNS or 1)


BLOCKS = 4


def blocks(usual: int, first: int = 0) -> list[ParameterSet]:
    """Cases of a simulation, a range of seeds each, from `first` on: a block in each of the first four turns.

    `make soak` has a single case.

    The seeds of the first block are few that reach every state; a test looks for the states in that block alone.
    """
    if MODEL_RUNS:
        return [pytest.param(range(first, first + usual * MODEL_RUNS), id="all")]
    starts = [(number, first + number * usual) for number in range(BLOCKS)]
    return [
        pytest.param(range(start, start + usual), marks=pytest.mark.in_turn(number), id=f"from-{start}")
        for number, start in starts
    ]
