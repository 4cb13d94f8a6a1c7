"""Fixtures of the crash tests."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from crash.judge import Judge
from crash.power import Power


@pytest.fixture
def chance() -> random.Random:
    """The choices of a test; SEED in the environment repeats the choices."""
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"SEED={seed}")  # noqa: T201
    return random.Random(seed)


@pytest.fixture
def judge(record_property: Callable[[str, object], None]) -> Judge:
    """The judge of the test's run."""
    return Judge(record_property)


@pytest.fixture
def power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Power:
    """The power of the nodes that are started from now on."""
    power = Power(tmp_path / "cluster", tmp_path / "platter")
    for name, text in power.environment.items():
        monkeypatch.setenv(name, text)
    return power
