"""When as many replicas are in sync as acks=all asks for (KIP-966). Pure.

1. The high watermark does not advance while fewer replicas are in sync than `min.insync.replicas` asks for. How far it
   may advance otherwise: `replication.leadership`.
2. A topic with fewer replicas than `min.insync.replicas` is held to the number that it has.
"""

from collections.abc import Collection

from tailrace.model.ids import BrokerId


def has_enough_in_sync(
    *, in_sync: Collection[BrokerId], replicas: Collection[BrokerId], min_insync_replicas: int
) -> bool:
    """Whether acks=all may be accepted, and the high watermark may advance."""
    return len(in_sync) >= min(min_insync_replicas, len(replicas))
