"""Whether this node's log directory can store, and what follows for its replicas while it cannot.

For as long as at least one cause holds, the replicas here leave (`server.replicas.failures`), as far as enough
others are in sync, and of what has left nothing is fetched: a leader would put an idle replica back in sync that is
complete by chance. When the last cause is over they are fetched again, catch up, and their leaders put them in sync.
"""

import logging
from enum import Enum
from typing import Protocol

_logger = logging.getLogger("tailrace.server")


class StallCause(Enum):
    """The reason why a log directory cannot store."""

    FULL = "disk-full"
    """Less room than the reserve, or none."""
    HUNG = "flush-hangs"
    """The disk has been at one round of flushes for too long."""


class Replicas(Protocol):
    """`server.replicas.failures.ReplicaFailures`."""

    def directory_stalled(self) -> None: ...

    def directory_recovered(self) -> None: ...


class Fetching(Protocol):
    """`server.replicas.followers.FollowerHosts`."""

    def fetch_only_in_sync(self, only: bool, /) -> None: ...


class LogDirectoryHealth:
    """One log directory; every change is one line in the log."""

    def __init__(self, path: str, *, replicas: Replicas, fetching: Fetching) -> None:
        self._path = path
        self._replicas = replicas
        self._fetching = fetching
        self._causes: dict[StallCause, None] = {}

    @property
    def is_stalled(self) -> bool:
        """Whether the directory cannot store now."""
        return bool(self._causes)

    def set_stalled(self, cause: StallCause, is_stalled: bool) -> None:
        """This cause holds from now on, or no more. Nothing happens if that is known."""
        if (cause in self._causes) is is_stalled:
            return
        was_stalled = self.is_stalled
        if is_stalled:
            self._causes[cause] = None
            _logger.error("event=log-directory-stalled path=%s cause=%s action=replicas-leave", self._path, cause.value)
        else:
            del self._causes[cause]
            _logger.warning(
                "event=log-directory-recovered path=%s cause=%s stalled=%s", self._path, cause.value, self.is_stalled
            )
        if self.is_stalled is not was_stalled:
            self._fetching.fetch_only_in_sync(self.is_stalled)
            if self.is_stalled:
                self._replicas.directory_stalled()
            else:
                self._replicas.directory_recovered()
