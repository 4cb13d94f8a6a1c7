"""The settings of a node as the values that its broker and its controller are built from."""

from collections.abc import Callable, Mapping

from tailrace.coordinators.groups.config import GroupConfig
from tailrace.coordinators.transactions.config import TransactionConfig
from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.deciding.topics import TopicRules
from tailrace.model.ids import BrokerId
from tailrace.node.settings.config import NodeConfig
from tailrace.node.settings.table import BROKER_SETTINGS
from tailrace.replication.replica_fetch import ReplicaFetchConfig
from tailrace.server.assembly.config import BrokerConfig
from tailrace.server.partitions.cleaner import CleanerConfig
from tailrace.server.partitions.scrubber import ScrubberConfig
from tailrace.server.partitions.upkeep import UpkeepConfig


def broker_config(config: NodeConfig, *, cluster_id: str, log_directory: str) -> BrokerConfig:
    """The broker of this node, with its logs there."""
    return BrokerConfig(
        broker_id=BrokerId(config.node_id),
        cluster_id=cluster_id,
        log_directory=log_directory,
        shown_log_directory=str(config.data_directory.absolute()),
        is_flushed=config.is_flushed,
        replica_lag_time_max_ms=config.integer("replica.lag.time.max.ms"),
        fetch_max_bytes=config.integer("fetch.max.bytes"),
        auto_create_topics=config.flag("auto.create.topics.enable"),
        verifies_transactions=config.flag("transaction.partition.verification.enable"),
        heartbeat_interval_ms=config.integer("broker.heartbeat.interval.ms"),
        session_timeout_ms=config.integer("broker.session.timeout.ms"),
        registration_timeout_ms=config.integer("initial.broker.registration.timeout.ms"),
        replica_fetch=_replica_fetch_config(config),
        groups=GroupConfig.read(config.integer, config.text),
        transactions=TransactionConfig.read(config.integer),
        upkeep=_upkeep_config(config),
    )


def controller_machine(
    config: NodeConfig, *, random_bytes: Callable[[int], bytes], founding_settings: Mapping[str, str]
) -> ControllerMachine:
    """The controller of this node. `founding_settings` are those of all brokers in a log that it founds."""
    rules = TopicRules(
        num_partitions=config.integer("num.partitions"),
        replication_factor=config.integer("default.replication.factor"),
        config=config.topic_defaults,
        max_partitions_per_topic=config.integer("max.partitions.per.topic"),
        max_partitions_per_broker=config.integer("max.partitions.per.node"),
    )
    return ControllerMachine(
        random_bytes=random_bytes,
        topic_rules=rules,
        broker_settings=BROKER_SETTINGS,
        founding_settings=founding_settings,
        broker_session_timeout_ms=config.integer("broker.session.timeout.ms"),
    )


def _upkeep_config(config: NodeConfig) -> UpkeepConfig:
    return UpkeepConfig(
        log_retention_check_interval_ms=config.integer("log.retention.check.interval.ms"),
        replica_high_watermark_checkpoint_interval_ms=config.integer("replica.high.watermark.checkpoint.interval.ms"),
        log_flush_offset_checkpoint_interval_ms=config.integer("log.flush.offset.checkpoint.interval.ms"),
        log_flush_start_offset_checkpoint_interval_ms=config.integer("log.flush.start.offset.checkpoint.interval.ms"),
        log_flush_scheduler_interval_ms=config.integer("log.flush.scheduler.interval.ms"),
        log_dir_reserve_bytes=config.integer("log.dir.reserve.bytes"),
        cleaner=CleanerConfig(
            log_cleaner_enable=config.flag("log.cleaner.enable"),
            log_cleaner_backoff_ms=config.integer("log.cleaner.backoff.ms"),
            log_cleaner_dedupe_buffer_size=config.integer("log.cleaner.dedupe.buffer.size"),
            log_cleaner_io_max_bytes_per_second=config.real("log.cleaner.io.max.bytes.per.second"),
        ),
        scrubber=ScrubberConfig(
            log_scrub_enable=config.flag("log.scrub.enable"),
            log_scrub_interval_ms=config.integer("log.scrub.interval.ms"),
            log_scrub_io_max_bytes_per_second=config.real("log.scrub.io.max.bytes.per.second"),
        ),
        producer_id_expiration_ms=config.integer("producer.id.expiration.ms"),
        producer_id_expiration_check_interval_ms=config.integer("producer.id.expiration.check.interval.ms"),
    )


def _replica_fetch_config(config: NodeConfig) -> ReplicaFetchConfig:
    return ReplicaFetchConfig(
        replica_fetch_max_bytes=config.integer("replica.fetch.max.bytes"),
        replica_fetch_response_max_bytes=config.integer("replica.fetch.response.max.bytes"),
        replica_fetch_wait_max_ms=config.integer("replica.fetch.wait.max.ms"),
        replica_fetch_min_bytes=config.integer("replica.fetch.min.bytes"),
        replica_fetch_backoff_ms=config.integer("replica.fetch.backoff.ms"),
        replica_socket_timeout_ms=config.integer("replica.socket.timeout.ms"),
    )
