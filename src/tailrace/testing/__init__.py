"""The public test kit: real nodes for your tests. pytest finds the fixtures (`tailrace_cluster`...) without an import.

Each name is imported at its first use: every run of pytest imports this package for the plugin.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.testing.cluster import Cluster
    from tailrace.testing.feeding import InputRecord
    from tailrace.testing.kafka_container import KafkaContainer
    from tailrace.testing.node_process import ClusterError
    from tailrace.testing.topic_names import TopicFactory

__all__ = ("Cluster", "ClusterError", "InputRecord", "KafkaContainer", "TopicFactory")

_HOMES = {
    "Cluster": "cluster",
    "ClusterError": "node_process",
    "InputRecord": "feeding",
    "KafkaContainer": "kafka_container",
    "TopicFactory": "topic_names",
}
"""The modules of the names."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
