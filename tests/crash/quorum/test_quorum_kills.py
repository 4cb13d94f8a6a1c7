"""kill -9 of any node of three, again and again, while clients change metadata: no acknowledged change is lost.

QUORUM_SECONDS in the environment says for how long; `make soak` takes ten minutes.
"""

import os
import random
import time
from pathlib import Path

import pytest

from crash.judge import Judge
from crash.quorum.workload import kill_one, put_to_the_test

SECONDS = float(os.environ.get("QUORUM_SECONDS", "12"))


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_no_acknowledged_change_is_lost(tmp_path: Path, chance: random.Random, judge: Judge) -> None:
    end = time.monotonic() + SECONDS
    judge(*put_to_the_test(tmp_path, chance, lambda deaths: deaths < 3 or time.monotonic() < end, kill_one))
