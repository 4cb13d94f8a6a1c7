"""A sink: the batches that were committed, and the runs that have committed. An immutable value; each step returns a
new value (pure)."""

from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from tailrace.model.sinks import RowsDigest

MOST_PAST_RUNS: Final = 128
"""The runs that a sink remembers and refuses. A run that more than so many runs have followed counts as a new run
again."""
LONGEST_ORIGIN: Final = 1_000
"""Characters of the text that says where the writer of a sink keeps its progress."""
NO_BATCH: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """The state of a sink in the log, from its first batch on."""

    last_batch: int
    """The last batch that is decided: this batch and all batches before are decided."""
    run: str
    """The current run: no run has followed it."""
    past_runs: tuple[int, ...] = ()
    """Digests of runs that were followed, the oldest first; bounded."""
    origin: str | None = None
    """The place where its writer keeps its progress; None: no writer has named a place."""
    rows: RowsDigest | None = None
    """The rows of the last batch; None: the writer has not stated its rows."""
    updated_at_ms: int
    """ms since 1970."""

    def has_followed(self, run: str) -> bool:
        """Whether another run has followed this run."""
        return run != self.run and run_digest(run) in self.past_runs

    def advanced(
        self, *, batch: int, run: str, origin: str | None, rows: RowsDigest | None = None, now_ms: int
    ) -> "Sink":
        """The sink after this batch is decided, with this run as the current run. A batch that was decided before keeps
        its rows."""
        return replace(
            self,
            last_batch=max(batch, self.last_batch),
            run=run,
            past_runs=self.past_runs if run == self.run else (*self.past_runs, run_digest(self.run))[-MOST_PAST_RUNS:],
            origin=self.origin if origin is None else origin,
            rows=rows if batch > self.last_batch else self.rows,
            updated_at_ms=now_ms,
        )


@lru_cache(maxsize=1_024)
def run_digest(run: str) -> int:
    """64 bits that tell this run from other runs."""
    return int.from_bytes(blake2b(run.encode(), digest_size=8).digest(), "big", signed=True)
