"""Tailrace: a Kafka-compatible replicated log in Python, with a Spark source and sink that need no jar.

The clients that block, and the values that they take and return, are imported from here; the clients for asyncio from
`tailrace.aio`. The names for a `ReplicaSelector` of one's own are here too (`replica.selector.class`). Each name is
imported when it is first used, so `import tailrace` costs next to nothing.
"""

from typing import TYPE_CHECKING

from tailrace.model.late_names import late_names

if TYPE_CHECKING:
    from tailrace.client.admin.topics import NewTopic
    from tailrace.client.blocking import Admin, Consumer, KeyedConsumer, Producer, RangedFetch
    from tailrace.client.cluster_view import AbsentTopic
    from tailrace.client.errors import (
        AbortableTransactionError,
        ClosedClient,
        FatalTransactionError,
        LogTruncation,
        ProducerFenced,
        RecordDeserializationError,
    )
    from tailrace.client.group.committed_offsets import ConsumerGroupMetadata, OffsetAndMetadata
    from tailrace.client.group.range_progress import KeyProgress, RangeBudget
    from tailrace.client.group.rebalance_callbacks import ConsumerRebalanceListener
    from tailrace.client.keyed.breaker import BreakerState
    from tailrace.client.keyed.keyed_metrics import HeldKey, KeyedMetrics, RunningKey
    from tailrace.client.keyed.outcomes import Done, KeyedRecord, Outcome, Retry, Skip
    from tailrace.client.reading.consumer_metrics import MetricName
    from tailrace.client.reading.records_ahead import ConsumerRecord
    from tailrace.client.transactions.producer_transaction import TransactionPhase
    from tailrace.client.transactions.sinks import SinkRefusal
    from tailrace.client.writing.outgoing import RecordMetadata, RecordNotWritten
    from tailrace.model import __version__
    from tailrace.model.committed_progress import Rectangle
    from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
    from tailrace.model.key_ranges import KeyRange
    from tailrace.model.partitions import TopicPartition
    from tailrace.replication.replica_selector import (
        ClientMetadata,
        LeaderSelector,
        PartitionView,
        RackAwareReplicaSelector,
        ReplicaNode,
        ReplicaSelector,
        ReplicaView,
    )

__all__ = (
    "AbortableTransactionError",
    "AbsentTopic",
    "Admin",
    "BreakerState",
    "ClientMetadata",
    "ClosedClient",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "CorruptRecords",
    "Done",
    "ErrorCode",
    "FatalTransactionError",
    "HeldKey",
    "KafkaError",
    "KeyProgress",
    "KeyRange",
    "KeyedConsumer",
    "KeyedMetrics",
    "KeyedRecord",
    "LeaderSelector",
    "LogTruncation",
    "MetricName",
    "NewTopic",
    "OffsetAndMetadata",
    "Outcome",
    "PartitionView",
    "Producer",
    "ProducerFenced",
    "RackAwareReplicaSelector",
    "RangeBudget",
    "RangedFetch",
    "RecordDeserializationError",
    "RecordMetadata",
    "RecordNotWritten",
    "Rectangle",
    "ReplicaNode",
    "ReplicaSelector",
    "ReplicaView",
    "Retry",
    "RunningKey",
    "SinkRefusal",
    "Skip",
    "TopicPartition",
    "TransactionPhase",
    "__version__",
)

_OF_SELECTORS = (
    "ClientMetadata",
    "LeaderSelector",
    "PartitionView",
    "RackAwareReplicaSelector",
    "ReplicaNode",
    "ReplicaSelector",
    "ReplicaView",
)
"""The names for a class of `replica.selector.class`: the class runs in a broker, which imports no client."""


def _absence(name: str) -> str:
    from tailrace.client.hints.absent_names import absence

    return absence(__name__, name, {*__all__, "aio", "testing"})


_late = late_names(
    __name__,
    {
        "model": ("__version__",),
        "replication.replica_selector": _OF_SELECTORS,
        "client.blocking": {*__all__}.difference(_OF_SELECTORS, ("__version__",)),
    },
    _absence,
)

_FORMER_NAMES = {
    "SharedConsumer": "KeyedConsumer",
    "SharedRecord": "KeyedRecord",
    "SharingMetrics": "KeyedMetrics",
}
"""Current names by the names that are deprecated: accepted in this release, for the last time (decision 0093)."""


def _by_former_name(name: str) -> object:
    import warnings

    current = _FORMER_NAMES[name]
    warnings.warn(f"tailrace.{name} is deprecated: its name is {current}", DeprecationWarning, stacklevel=3)
    return _late(current)


def _found(name: str) -> object:
    return _by_former_name(name) if name in _FORMER_NAMES else _late(name)


if not TYPE_CHECKING:
    __getattr__ = _found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
