"""A log that is killed, loses power, and has a bit flipped: damage is told from a torn write, and is never served."""

import os

import pytest

from simulation.logs.damaged_log import run_seed

SEEDS = int(os.environ.get("DAMAGED_LOG_SEEDS", "12"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_law_breaks(seed: int) -> None:
    run_seed(seed)
