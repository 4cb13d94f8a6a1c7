"""The clients without asyncio: for Spark, the command line, notebooks and tests. Calls block, and are thread-safe.

The asyncio clients do the work, on this process's background loop (see loop_thread). A client made before a fork works
in the child too: it makes new connections there when it is first used.

Each name is imported when it is first used: the client of an administrator needs none of the parts that read and write.
"""

from typing import TYPE_CHECKING, Final

from tailrace.model.late_names import late_names

if TYPE_CHECKING:
    from tailrace.client.admin.topics import NewTopic
    from tailrace.client.blocking.admin import Admin
    from tailrace.client.blocking.consumer import Consumer
    from tailrace.client.blocking.keyed_consumer import KeyedConsumer
    from tailrace.client.blocking.producer import Producer
    from tailrace.client.blocking.ranged_fetch import RangedFetch
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
    from tailrace.model.committed_progress import Rectangle
    from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
    from tailrace.model.key_ranges import KeyRange
    from tailrace.model.partitions import TopicPartition

__all__ = (
    "AbortableTransactionError",
    "AbsentTopic",
    "Admin",
    "BreakerState",
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
    "LogTruncation",
    "MetricName",
    "NewTopic",
    "OffsetAndMetadata",
    "Outcome",
    "Producer",
    "ProducerFenced",
    "RangeBudget",
    "RangedFetch",
    "RecordDeserializationError",
    "RecordMetadata",
    "RecordNotWritten",
    "Rectangle",
    "Retry",
    "RunningKey",
    "SinkRefusal",
    "Skip",
    "TopicPartition",
    "TransactionPhase",
)

_MODULES: Final = {
    "client.admin.topics": ("NewTopic",),
    "client.blocking.admin": ("Admin",),
    "client.blocking.consumer": ("Consumer",),
    "client.blocking.ranged_fetch": ("RangedFetch",),
    "client.blocking.producer": ("Producer",),
    "client.cluster_view": ("AbsentTopic",),
    "client.errors": (
        "AbortableTransactionError",
        "ClosedClient",
        "FatalTransactionError",
        "LogTruncation",
        "ProducerFenced",
        "RecordDeserializationError",
    ),
    "client.group.committed_offsets": ("ConsumerGroupMetadata", "OffsetAndMetadata"),
    "client.group.range_progress": ("KeyProgress", "RangeBudget"),
    "client.group.rebalance_callbacks": ("ConsumerRebalanceListener",),
    "client.blocking.keyed_consumer": ("KeyedConsumer",),
    "client.keyed.breaker": ("BreakerState",),
    "client.keyed.keyed_metrics": ("HeldKey", "KeyedMetrics", "RunningKey"),
    "client.keyed.outcomes": ("Done", "KeyedRecord", "Outcome", "Retry", "Skip"),
    "client.reading.consumer_metrics": ("MetricName",),
    "client.reading.records_ahead": ("ConsumerRecord",),
    "client.transactions.producer_transaction": ("TransactionPhase",),
    "client.transactions.sinks": ("SinkRefusal",),
    "client.writing.outgoing": ("RecordMetadata", "RecordNotWritten"),
    "model.committed_progress": ("Rectangle",),
    "model.errors": ("CorruptRecords", "ErrorCode", "KafkaError"),
    "model.key_ranges": ("KeyRange",),
    "model.partitions": ("TopicPartition",),
}
"""The modules of the names."""

if not TYPE_CHECKING:
    __getattr__ = late_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
