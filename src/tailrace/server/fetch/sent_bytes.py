"""Counts of the record bytes that fetches were answered with, by reader: a metric."""

from collections.abc import Iterable

from tailrace.replication.partition import Partition


class SentBytes:
    """The bytes sent since the start of the broker. Plain numbers, read at a scrape."""

    __slots__ = ("to_consumers_by_follower", "to_consumers_by_leader", "to_followers")

    def __init__(self) -> None:
        self.to_followers = 0
        self.to_consumers_by_leader = 0
        """To consumers, of partitions that this broker led."""
        self.to_consumers_by_follower = 0
        """To consumers, of partitions that another broker led (KIP-392)."""

    def count(self, given: Iterable[tuple[Partition, int]], *, is_replica: bool) -> None:
        """Count an answer: its partitions, with the bytes of each."""
        for partition, size_bytes in given:
            if size_bytes:
                partition.sent_bytes += size_bytes
                if is_replica:
                    self.to_followers += size_bytes
                elif partition.is_leader:
                    self.to_consumers_by_leader += size_bytes
                else:
                    self.to_consumers_by_follower += size_bytes
