"""A session cache that holds what a test puts into it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class ListedOwner(NamedTuple):
    """The reader of a session."""

    principal: str = "User:ANONYMOUS"
    listener_name: str = "PLAINTEXT"
    replica_id: int = -1


CONSUMER = ListedOwner()


@dataclass(frozen=True, kw_only=True)
class ListedSession:
    """A session, for its description."""

    session_id: int
    epoch: int = 1
    owner: ListedOwner = CONSUMER
    client_id: str = "reader"
    client_host: str = "/127.0.0.1"
    is_privileged: bool = False
    partition_count: int = 1
    uses_topic_ids: bool = True
    created_ms: int = 0
    last_used_ms: int = 0
    incremental_fetches: int = 0
    saved_bytes: int = 0


@dataclass(kw_only=True)
class ListedSessions:
    """The cache."""

    listed: list[ListedSession] = field(default_factory=list)
    slots: int = 1_000
    evictions: int = 0

    def __len__(self) -> int:
        return len(self.listed)

    @property
    def partition_count(self) -> int:
        return sum(session.partition_count for session in self.listed)

    def sessions(self) -> Iterable[ListedSession]:
        return iter(self.listed)
