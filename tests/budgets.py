"""The number of examples that a search may try in each run, and how many times as many in `make soak`.

`make test` runs what has found every known fault in little time; `make soak` multiplies each count by MODEL_RUNS.
"""

import os

MODEL_RUNS = int(os.environ.get("MODEL_RUNS", "0"))
"""So many times the usual number of examples, by chance; 0 for the usual ones, always the same."""


def examples(usual: int) -> int:
    """The examples of a property, or the seeds of a simulation."""
    return usual * (MODEL_RUNS or 1)
