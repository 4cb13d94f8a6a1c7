"""Settings of transactions, with Kafka's names and defaults except where a comment says otherwise."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Times in milliseconds, sizes in bytes."""

    transaction_max_timeout_ms: int = 900_000
    """The longest a producer may ask its transactions to stay open."""
    transactional_id_expiration_ms: int = 604_800_000
    """The time after which an unused transactional id is deleted."""
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_max_ids: int = 100_000
    """Transactional ids per node. Ours."""
    transaction_state_log_num_partitions: int = 50
    transaction_state_log_replication_factor: int = 3
    """The most; a cluster with fewer brokers takes as many as it has."""
    transaction_state_log_min_isr: int = 2
    """The most; never more than there are replicas."""
    transaction_state_log_segment_bytes: int = 104_857_600
