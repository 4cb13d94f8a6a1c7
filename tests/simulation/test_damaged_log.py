"""A log that is killed, loses power, and suffers a flipped bit: damage is told from a torn write, and is never
served."""

import pytest

from budgets import blocks
from simulation.logs.damaged_log import run_seed


@pytest.mark.parametrize("seeds", blocks(12))
def test_no_law_breaks(seeds: range) -> None:
    for seed in seeds:
        run_seed(seed)
