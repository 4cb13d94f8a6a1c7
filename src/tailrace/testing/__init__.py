"""The public test kit: real nodes for your tests. With pytest, the fixture `tailrace_cluster` is there by itself."""

from tailrace.testing.cluster import Cluster, ClusterError

__all__ = ("Cluster", "ClusterError")
