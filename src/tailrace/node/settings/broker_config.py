"""The settings of a node as the values that its broker and its controller are built from."""

import logging
from collections.abc import Callable, Mapping, Sequence

from tailrace.coordinators.config import GroupConfig, TransactionConfig
from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.deciding.config_changes import DECISIVE, MIN_IN_SYNC
from tailrace.metadata.deciding.topics import TopicRules
from tailrace.metadata.image import ALL_BROKERS, ClusterImage
from tailrace.metadata.records.users import UserScramCredentialRecord
from tailrace.model.ids import BrokerId
from tailrace.model.proofs import NO_SECRET
from tailrace.node.settings.config import NodeConfig
from tailrace.node.settings.table import BROKER_SETTINGS
from tailrace.replication.fetch_requests import ReplicaFetchConfig
from tailrace.replication.throttle import ThrottleConfig
from tailrace.server.admin.config_entries import ConfigSource
from tailrace.server.assembly.config import BrokerConfig
from tailrace.server.authorizer import PERMIT_ALL, Authorizer, StandardAuthorizer
from tailrace.server.fetch.key_reads import KeyRangeConfig
from tailrace.server.partitions.cleaner import CleanerConfig
from tailrace.server.partitions.periodic_work import PeriodicWorkConfig
from tailrace.server.partitions.scrubber import ScrubberConfig
from tailrace.server.quorum.controller import QuorumController
from tailrace.server.quotas.rates import QuotaConfig


def broker_config(
    config: NodeConfig, *, cluster_id: str, log_directory: str, incarnation_secret: bytes = NO_SECRET
) -> BrokerConfig:
    """The values from which the broker of this node is built; its logs are in `log_directory`."""
    return BrokerConfig(
        broker_id=BrokerId(config.node_id),
        cluster_id=cluster_id,
        incarnation_secret=incarnation_secret,
        log_directory=log_directory,
        shown_log_directory=str(config.data_directory.absolute()),
        is_flushed=config.is_flushed,
        replica_lag_time_max_ms=config.integer("replica.lag.time.max.ms"),
        fetch_max_bytes=config.integer("fetch.max.bytes"),
        key_ranges=config.fill(KeyRangeConfig),
        fetch_session_slots=config.integer("max.incremental.fetch.session.cache.slots"),
        auto_create_topics=config.flag("auto.create.topics.enable"),
        verifies_transactions=config.flag("transaction.partition.verification.enable"),
        heartbeat_interval_ms=config.integer("broker.heartbeat.interval.ms"),
        session_timeout_ms=config.integer("broker.session.timeout.ms"),
        registration_timeout_ms=config.integer("initial.broker.registration.timeout.ms"),
        replica_fetch=config.fill(ReplicaFetchConfig),
        throttle=config.fill(ThrottleConfig),
        quotas=config.fill(QuotaConfig),
        groups=config.fill(GroupConfig),
        transactions=config.fill(TransactionConfig),
        periodic_work=config.fill(
            PeriodicWorkConfig, cleaner=config.fill(CleanerConfig), scrubber=config.fill(ScrubberConfig)
        ),
    )


def authorizer(config: NodeConfig, metadata: QuorumController) -> Authorizer:
    """The authorizer of this node, which reads the ACLs in the metadata."""
    if config.authorizer_class is None:
        return PERMIT_ALL
    return StandardAuthorizer(
        image=lambda: metadata.image,
        is_loaded=lambda: metadata.has_loaded,
        super_users=config.super_users,
        allows_without_rule=config.flag("allow.everyone.if.no.acl.found"),
    )


def controller_machine(
    config: NodeConfig,
    *,
    random_bytes: Callable[[int], bytes],
    founding_settings: Mapping[str, str],
    founding_users: Sequence[UserScramCredentialRecord] = (),
) -> ControllerMachine:
    """The controller of this node. In a log that this controller founds, `founding_settings` become the settings of all
    brokers, and `founding_users` are the first users."""
    rules = TopicRules(
        num_partitions=config.integer("num.partitions"),
        replication_factor=config.integer("default.replication.factor"),
        config=config.topic_defaults,
        max_partitions_per_topic=config.integer("max.partitions.per.topic"),
        max_partitions_per_broker=config.integer("max.partitions.per.node"),
        max_frame_bytes=config.integer("socket.request.max.bytes"),
    )
    return ControllerMachine(
        random_bytes=random_bytes,
        topic_rules=rules,
        broker_settings=BROKER_SETTINGS,
        founding_settings=founding_settings,
        founding_users=founding_users,
        broker_session_timeout_ms=config.integer("broker.session.timeout.ms"),
    )


_logger = logging.getLogger("tailrace.node")


def founding_settings(config: NodeConfig) -> dict[str, str]:
    """The settings of all brokers in a new log: `min.insync.replicas`, and the decisive settings that this node states.

    Every node derives the same elections from the log. The elections depend on these settings, so the settings must
    hold for the whole cluster. `min.insync.replicas` is stated with its default, as by `kafka-storage format`: so a
    client sees that the cluster has the setting. Later a node's own value has no effect, and the node logs that.
    """
    setting = BROKER_SETTINGS[MIN_IN_SYNC]
    default = setting.format(setting.default)
    assert default is not None, f"{MIN_IN_SYNC} always has a value"
    return {MIN_IN_SYNC: default, **_stated(config)}


def _stated(config: NodeConfig) -> dict[str, str]:
    """The settings of all brokers that this node's own settings state."""
    stated: dict[str, str] = {}
    for entry in config.entries():
        if entry.setting.name in DECISIVE and entry.source is ConfigSource.STATIC_BROKER_CONFIG:
            text = entry.setting.format(entry.value)
            assert text is not None, f"{entry.setting.name} always has a value"
            stated[entry.setting.name] = text
    return stated


def log_overruled_settings(config: NodeConfig, image: ClusterImage) -> None:
    """Log each decisive setting for which this node states another value than the cluster, and what an administrator
    can do."""
    agreed = image.overrides(ALL_BROKERS)
    for name, stated in _stated(config).items():
        value = agreed.get(name)
        if value is None:
            value = BROKER_SETTINGS[name].format(BROKER_SETTINGS[name].default)
        if stated != value:
            _logger.warning(
                "event=setting-of-the-cluster-differs setting=%s here=%s cluster=%s"
                " way-out='kafka-configs --alter --entity-type brokers --entity-default --add-config %s=%s'",
                name,
                stated,
                value,
                name,
                stated,
            )
