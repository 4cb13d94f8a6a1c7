"""The public test kit: real nodes for your tests. pytest finds the fixture `tailrace_cluster` without an import.

`Cluster` is imported at its first use: every run of pytest imports this package for the plugin.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.testing.cluster import Cluster, ClusterError

__all__ = ("Cluster", "ClusterError")


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tailrace.testing import cluster

    found = globals()[name] = getattr(cluster, name)
    return found
