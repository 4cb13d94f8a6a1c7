"""Who is in sync, and when the high watermark may advance (KIP-966). Pure.

1. The high watermark is the smallest end offset among the in-sync replicas: what all of them have cannot be lost by
   the failure of some of them. Under flushed durability an end offset is a *flushed* end offset.
2. It does not advance while fewer replicas are in sync than `min.insync.replicas` asks for, and it never falls.
3. A topic with fewer replicas than `min.insync.replicas` is held to the number that it has.
"""

from collections.abc import Collection, Mapping

from tailrace.model.ids import BrokerId


def has_enough_in_sync(
    *, in_sync: Collection[BrokerId], replicas: Collection[BrokerId], min_insync_replicas: int
) -> bool:
    """Whether acks=all may be accepted, and the high watermark may advance."""
    return len(in_sync) >= min(min_insync_replicas, len(replicas))


def advanced_high_watermark(
    high_watermark: int, *, end_offsets: Mapping[BrokerId, int], in_sync: Collection[BrokerId]
) -> int:
    """The high watermark after the replicas have reached these end offsets (exclusive).

    A replica in sync that has not reported an end offset holds the high watermark where it is.
    """
    if not in_sync:
        return high_watermark
    return max(high_watermark, min(end_offsets.get(replica, -1) for replica in in_sync))
