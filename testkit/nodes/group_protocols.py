"""Clusters for clients that choose the protocol of their groups by what the server offers."""

from collections.abc import Iterator

from tailrace.testing import Cluster

GROUP_PROTOCOLS = ("consumer", "classic")


def cluster_of(protocol: str) -> Iterator[Cluster]:
    """A new cluster whose groups have this protocol: without another wish, members join by it."""
    settings = {"group.coordinator.rebalance.protocols": "classic"} if protocol == "classic" else {}
    with Cluster(config=settings) as cluster:
        yield cluster
