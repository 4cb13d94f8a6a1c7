"""Batches whose headers contradict their records: the laws hold from produce to retention.

SEEDS=2000 pytest tests/simulation/test_wrong_headers.py     tries more seeds
"""

import os

import pytest

from simulation.logs.wrong_headers import run_seed

SEEDS = int(os.environ.get("WRONG_HEADERS_SEEDS", "20"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_wrong_headers_mislead_no_reader(seed: int) -> None:
    run_seed(seed)
