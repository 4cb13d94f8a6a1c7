"""Signs of life for the runs whose transactions this worker's tasks have open, from a thread (decision 0083).

A transaction stays open from a task's first row to the driver's commit, and holds up readers of committed data. When a
driver is killed its workers die too, their signs end, and the cluster aborts what the run has left open long before the
timeout. A worker gives signs for its tasks that are done as well, until their batch is decided.
"""

import logging
import os
import threading
from collections.abc import Collection
from typing import Final

from tailrace.client.blocking import Admin
from tailrace.model.errors import KafkaError
from tailrace.model.sinks import SinkMember

LEASE_MS: Final = 60_000
"""The time without a sign after which the members of a run are aborted. Spark keeps idle workers for a minute."""
_PERIOD_S: Final = 10.0

_log = logging.getLogger(__name__)


class MemberLeases:
    """The runs that one worker process has open transactions of, on one cluster."""

    def __init__(self, bootstrap_servers: str, *, period_s: float = _PERIOD_S) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._period_s = period_s
        self._changed = threading.Condition()
        self._batches: dict[tuple[str, str], int] = {}
        """The last batch of each sink and run."""
        self._thread: threading.Thread | None = None

    @property
    def is_at_work(self) -> bool:
        """Whether signs are given for a run."""
        with self._changed:
            return self._thread is not None

    def hold(self, member: SinkMember) -> None:
        """Give signs for the run of this member, at once and until its batch is decided."""
        with self._changed:
            is_new = (member.sink, member.run) not in self._batches
            self._batches[member.sink, member.run] = member.batch
            if self._thread is None:
                self._thread = threading.Thread(target=self._give_signs, name="tailrace-leases", daemon=True)
                self._thread.start()
            elif is_new:
                self._changed.notify()

    def _give_signs(self) -> None:
        with Admin(self._bootstrap_servers) as admin:
            while batches := self._still_open():
                for (sink, run), batch in batches.items():
                    self._give_sign(admin, sink, run, batch)
                self._rest(batches.keys())

    def _still_open(self) -> dict[tuple[str, str], int]:
        with self._changed:
            if not self._batches:
                self._thread = None
            return dict(self._batches)

    def _rest(self, known: Collection[tuple[str, str]]) -> None:
        """Wait for the next sign's time, or for another run."""
        with self._changed:
            if self._batches:
                self._changed.wait_for(lambda: any(run not in known for run in self._batches), self._period_s)

    def _give_sign(self, admin: Admin, sink: str, run: str, batch: int) -> None:
        try:
            last_batch = admin.renew_sink_run(sink, run=run, lease_ms=LEASE_MS, timeout_ms=int(self._period_s * 1_000))
        except KafkaError as fault:
            if fault.code.retriable:
                _log.warning("no sign of life for run %s of sink %s: %s", run, sink, fault)
                return
            last_batch = batch  # the run was followed, or the cluster takes no signs: the timeouts are left
        with self._changed:
            if self._batches.get((sink, run), batch) <= last_batch:
                self._batches.pop((sink, run), None)


_leases: dict[tuple[int, str], MemberLeases] = {}
"""The process id is in the key, since Spark forks its workers."""


def worker_leases(bootstrap_servers: str) -> MemberLeases:
    """Those of this process."""
    return _leases.setdefault((os.getpid(), bootstrap_servers), MemberLeases(bootstrap_servers))
