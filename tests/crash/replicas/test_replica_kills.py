"""kill -9 of leaders under load, three replicas each: acknowledged records are there, once, in order."""

import random
from pathlib import Path

import pytest

from crash.replicas.leader_kills import kill_leaders


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost_when_leaders_are_killed(tmp_path: Path, chance: random.Random) -> None:
    kill_leaders(tmp_path, chance)
