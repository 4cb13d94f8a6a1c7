"""Signs of life for the runs whose transactions this worker's tasks have open, from a thread (decision 0083).

A transaction stays open from a task's first row to the driver's commit, and holds up readers of committed data. When a
driver is killed its workers die too, their signs end, and the cluster aborts what the run has left open long before the
timeout. A worker gives signs for its tasks that are done as well, until their batch is decided, but for a minute at
most: there may be no driver left that decides it, and in a session with other queries a worker lives on.
"""

import logging
import os
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Final

from tailrace.client.blocking.admin import Admin
from tailrace.client.settings import ClientSettings
from tailrace.model.errors import KafkaError
from tailrace.model.sinks import SinkMember
from tailrace.spark.cluster_access import ClusterAccess

LEASE_MS: Final = 60_000
"""The time without a sign after which the members of a run are aborted. Spark keeps idle workers for a minute."""
_PERIOD_S: Final = 10.0
_AFTER_TASK_S: Final = 60.0
"""The time for which signs go on when the last task of a run has ended here: as long as Spark keeps an idle worker."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Held:
    """The signs of one run of a sink."""

    batch: int
    """The last batch that a task here has written for."""
    ends_at: float = inf
    """The end of the signs, on the monotonic clock; infinite while a task is at work."""


class MemberLeases:
    """The runs that one worker process has open transactions of, on one cluster."""

    def __init__(
        self, cluster: ClusterAccess, *, period_s: float = _PERIOD_S, after_task_s: float = _AFTER_TASK_S
    ) -> None:
        self._cluster = cluster
        self._period_s = period_s
        self._after_task_s = after_task_s
        self._changed = threading.Condition()
        self._held: dict[tuple[str, str], _Held] = {}
        """The signs by sink and run."""
        self._thread: threading.Thread | None = None

    @property
    def is_at_work(self) -> bool:
        """Whether signs are given for a run."""
        with self._changed:
            return self._thread is not None

    def hold(self, member: SinkMember) -> None:
        """Give signs for the run of this member, at once and until its batch is decided or its task has long ended."""
        with self._changed:
            is_new = (member.sink, member.run) not in self._held
            self._held[member.sink, member.run] = _Held(member.batch)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._give_signs, args=(self._cluster.settings(),), name="tailrace-leases", daemon=True
                )
                self._thread.start()
            elif is_new:
                self._changed.notify()

    def task_ended(self, member: SinkMember) -> None:
        """Give signs for the run of this member for a while: a worker has one task at a time."""
        with self._changed:
            held = self._held.get((member.sink, member.run))
            if held is not None:
                held.ends_at = time.monotonic() + self._after_task_s

    def _give_signs(self, settings: ClientSettings) -> None:
        with Admin.of(settings) as admin:
            while batches := self._still_open():
                for (sink, run), batch in batches.items():
                    self._give_sign(admin, sink, run, batch)
                self._rest(batches.keys())

    def _still_open(self) -> dict[tuple[str, str], int]:
        with self._changed:
            now = time.monotonic()
            self._held = {run: held for run, held in self._held.items() if held.ends_at > now}
            if not self._held:
                self._thread = None
            return {run: held.batch for run, held in self._held.items()}

    def _rest(self, known: Collection[tuple[str, str]]) -> None:
        """Wait for the next sign's time, or for another run."""
        with self._changed:
            if self._held:
                self._changed.wait_for(lambda: any(run not in known for run in self._held), self._period_s)

    def _give_sign(self, admin: Admin, sink: str, run: str, batch: int) -> None:
        try:
            last_batch = admin.renew_sink_run(sink, run=run, lease_ms=LEASE_MS, timeout_ms=int(self._period_s * 1_000))
        except KafkaError as fault:
            if fault.code.retriable:
                _log.warning("no sign of life for run %s of sink %s: %s", run, sink, fault)
                return
            last_batch = batch  # the run was followed, or the cluster takes no signs: only timeouts remain
        with self._changed:
            held = self._held.get((sink, run))
            if held is not None and held.batch <= last_batch:
                del self._held[sink, run]


_leases: dict[tuple[int, ClusterAccess], MemberLeases] = {}
"""The leases of this process. The process id is in the key, since Spark forks its workers."""


def worker_leases(cluster: ClusterAccess) -> MemberLeases:
    """The leases of this process on this cluster."""
    return _leases.setdefault((os.getpid(), cluster), MemberLeases(cluster))
