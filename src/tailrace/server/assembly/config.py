"""The values and the ports that a broker is built from."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.coordinators.config import GroupConfig, TransactionConfig
from tailrace.model.ids import BrokerId
from tailrace.model.proofs import NO_SECRET
from tailrace.replication.fetch_requests import ReplicaFetchConfig
from tailrace.replication.replica_selector import LeaderSelector, ReplicaSelector
from tailrace.replication.throttle import ThrottleConfig
from tailrace.server.fetch.key_reads import KeyRangeConfig
from tailrace.server.partitions.periodic_work import PeriodicWorkConfig
from tailrace.server.ports import Clock, Disk, Peer
from tailrace.server.quotas.rates import QuotaConfig
from tailrace.storage import FileSystem


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker that do not change while the broker runs. Times in milliseconds, sizes in bytes."""

    broker_id: BrokerId
    cluster_id: str
    log_directory: str
    """The directory of the logs, in `BrokerPorts.files`."""
    shown_log_directory: str
    """The path of that directory in the answers of DescribeLogDirs."""
    is_flushed: bool
    """log.durability=flushed, otherwise page-cache."""
    replica_lag_time_max_ms: int
    fetch_max_bytes: int
    key_ranges: KeyRangeConfig
    fetch_session_slots: int
    """max.incremental.fetch.session.cache.slots"""
    auto_create_topics: bool
    """auto.create.topics.enable."""
    verifies_transactions: bool
    """transaction.partition.verification.enable."""
    heartbeat_interval_ms: int
    session_timeout_ms: int
    registration_timeout_ms: int
    """initial.broker.registration.timeout.ms."""
    replica_fetch: ReplicaFetchConfig
    throttle: ThrottleConfig
    groups: GroupConfig
    """The settings of groups without `settings_of`: the broker adds `settings_of`, which reads the image."""
    transactions: TransactionConfig
    periodic_work: PeriodicWorkConfig
    incarnation_secret: bytes = field(default=NO_SECRET, repr=False)
    """Proves to other nodes that this process has sent a request (`model.proofs`)."""
    quotas: QuotaConfig = field(default_factory=QuotaConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPorts:
    """The surroundings of one broker."""

    clock: Clock
    files: FileSystem
    disk: Disk
    """Flushes logs as log.durability says."""
    syncing_disk: Disk
    """Always flushes logs; the same object as `disk` under log.durability=flushed."""
    peers: Peer
    """Sends requests to the other brokers."""
    random_bytes: Callable[[int], bytes]
    """Returns this many random bytes, for the ids of group members and fetch sessions."""
    process_ns: Callable[[], int] | None = None
    """Returns the time in ns from an arbitrary start, by which requests are measured; None: the clock measures."""
    replica_selector: ReplicaSelector = field(default_factory=LeaderSelector)
    """Chooses the replicas that consumers read from (KIP-392)."""
