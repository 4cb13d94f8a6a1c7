"""Fixtures of the crash tests."""

from pathlib import Path

import pytest

from crash.power import Power


@pytest.fixture
def power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Power:
    """The power of the nodes that are started from now on."""
    power = Power(tmp_path / "cluster", tmp_path / "platter")
    for name, text in power.environment.items():
        monkeypatch.setenv(name, text)
    return power
