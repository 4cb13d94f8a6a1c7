"""The features with levels for the whole cluster, and the levels that this release knows (KIP-584)."""

from tailrace.model.errors import ErrorCode, KafkaError

METADATA_VERSION_FEATURE = "metadata.version"
METADATA_VERSION = 27
"""The metadata.version of a new cluster: Kafka's 4.1-IV1. The level decides the version in which each record is
written."""
FIRST_WITH_KEY_RANGES = 27
"""From this level on all brokers know key ranges and committed ranges (KIP-X). The level has the same records as 26."""
OLDEST_METADATA_VERSION = 26
"""Kafka's 4.1-IV0, the first level with eligible leaders as `derive` computes them. A log of an older level is
refused."""

TRANSACTION_VERSION_FEATURE = "transaction.version"
TRANSACTION_VERSION = 2
"""The level at which each transaction of a producer has an epoch of its own, and the coordinator adds its partitions
(KIP-890)."""


def check_metadata_version(level: int) -> None:
    """Raises KafkaError UNSUPPORTED_VERSION for a level whose records or rules this release does not have."""
    if level == 0 or OLDEST_METADATA_VERSION <= level <= METADATA_VERSION:
        return
    if level > METADATA_VERSION:
        way_out = "start this node with a newer release"
    else:
        way_out = (
            "start the nodes with the release that wrote this log, raise the level there, and go on with this release"
            " when each node has a metadata snapshot behind the raise; or begin with empty directories"
        )
    raise KafkaError(
        ErrorCode.UNSUPPORTED_VERSION,
        f"the metadata log has {METADATA_VERSION_FEATURE} {level}, and this release knows {OLDEST_METADATA_VERSION} to"
        f" {METADATA_VERSION}; {way_out}",
    )
