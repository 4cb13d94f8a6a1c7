"""The progress of the other replicas on their leader: end offsets and times of contact."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tailrace.raft.voters import ReplicaKey

UNKNOWN = -1


@dataclass(slots=True)
class Progress:
    """The progress of one replica. Only `contacted` and `fetched` change it."""

    key: ReplicaKey
    end_offset: int = UNKNOWN
    """The end of the replica's flushed log: the last valid fetch offset in this epoch."""
    last_contact_ms: int = UNKNOWN
    """The time of the replica's last request for records or a snapshot."""
    last_fetch_ms: int = UNKNOWN
    last_caught_up_ms: int = UNKNOWN
    """The last time at which the replica had every record of the leader."""
    _leader_end_at_last_fetch: int = UNKNOWN
    _last_fetch_before_ms: int = UNKNOWN

    def contacted(self, now_ms: int) -> None:
        self.last_contact_ms = now_ms

    def fetched(self, offset: int, leader_end_offset: int, now_ms: int) -> bool:
        """Record a fetch at this offset; returns whether the end offset has changed."""
        if offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif self._leader_end_at_last_fetch != UNKNOWN and offset >= self._leader_end_at_last_fetch:
            # The replica has every record that the leader had at the replica's previous fetch.
            self.last_caught_up_ms = max(self.last_caught_up_ms, self._last_fetch_before_ms)
        self._leader_end_at_last_fetch = leader_end_offset
        self._last_fetch_before_ms = now_ms
        self.last_fetch_ms = now_ms
        news = offset != self.end_offset
        self.end_offset = offset
        return news


class ProgressTable:
    """The replicas that have contacted a leader in its epoch. Observers that fall silent are dropped."""

    def __init__(self, voters: Iterable[ReplicaKey], now_ms: int) -> None:
        # A voter is live from the election on, so that the log start waits for its first fetch.
        self._replicas = {key: Progress(key, last_contact_ms=now_ms) for key in voters}

    def __iter__(self) -> Iterator[Progress]:
        return iter(self._replicas.values())

    def of(self, key: ReplicaKey) -> Progress:
        """The progress of this replica, tracked from now on."""
        progress = self._replicas.get(key)
        if progress is None:
            progress = self._replicas[key] = Progress(key)
        return progress

    def known(self, key: ReplicaKey) -> Progress | None:
        return self._replicas.get(key)

    def live(self, now_ms: int, within_ms: int) -> list[Progress]:
        """Replicas with a contact within this time (KIP-630 calls them live)."""
        return [progress for progress in self._replicas.values() if progress.last_contact_ms + within_ms > now_ms]

    def drop_silent(self, keep: Iterable[ReplicaKey], now_ms: int, after_ms: int) -> None:
        """Forget the replicas outside of `keep` whose last contact is longer ago than `after_ms`."""
        kept = set(keep)
        for key, progress in list(self._replicas.items()):
            if key not in kept and progress.last_contact_ms + after_ms <= now_ms:
                del self._replicas[key]
