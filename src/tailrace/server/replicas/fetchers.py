"""The replica fetchers of this node, a fetcher for each leader: it fetches the partitions that this node follows there.

The image states the leaders. A partition is followed as soon as it has taken its role. The first fetch waits until the
partition's whole log is flushed: after a leadership, the end of the log may not be on the disk yet.

A disk that hangs delays the image of this node. So a replica that leaves because of such a disk is not fetched from the
time of the proposal on: by a fetch, the replica of an idle partition would seem caught up, and the leader would add it
to the ISR again.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta
from tailrace.model.errors import KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.replication.fetch_requests import ReplicaFetchConfig, SessionFetches
from tailrace.replication.fetcher_events import PartitionKey, Unfollow
from tailrace.replication.throttle import ReplicationThrottle
from tailrace.server.callbacks import Alarm, run_in_slices
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock, Peer
from tailrace.server.replicas.fetcher_host import ReplicaFetcherHost

_RETRY_MS: Final = 200
"""The pause before the next look for a partition that is missing here."""
_UNKNOWN: Final = -1
_WHILE_PROPOSED: Final = 1 << 31
"""A number above all partition epochs."""


class _Leader(NamedTuple):
    """The leader that a partition follows."""

    broker_id: BrokerId
    leader_epoch: int


class ReplicaFetchers:
    """The fetchers of all leaders. `load` comes first, then `on_image` after the partitions have their roles."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        secret: bytes,
        partitions: PartitionTable,
        peer: Peer,
        clock: Clock,
        config: ReplicaFetchConfig,
        throttle: ReplicationThrottle | None = None,
    ) -> None:
        """`secret` is the secret of this broker's incarnation. `peer` sends to the other brokers. `throttle` is shared
        by all fetches; None: fetches are not throttled."""
        self._broker_id = broker_id
        self._secret = secret
        self._partitions = partitions
        self._peer = peer
        self._clock = clock
        self._config = config
        self._throttle = throttle
        self._image = EMPTY_IMAGE
        self._hosts: dict[BrokerId, ReplicaFetcherHost] = {}
        self._failed_before = 0  # failed fetches of hosts that are closed
        self._leaders: dict[PartitionKey, _Leader] = {}
        self._names: dict[PartitionKey, TopicPartition] = {}
        # Partitions to be followed that are not looked up yet. (In a plain dictionary the first entry is only found
        # behind the room of removed entries.)
        self._to_begin: OrderedDict[PartitionKey, None] = OrderedDict()
        self._unmade: dict[PartitionKey, None] = {}  # to be followed; the log is new and not durable yet
        self._missing: dict[PartitionKey, None] = {}  # looked up, and not yet in the table
        self._retry = Alarm(clock, self._look_again)
        self._only_in_sync = False
        self._left: dict[PartitionKey, int] = {}  # removed by the controller, with the partition epoch
        self._is_closed = False

    # State

    @property
    def failed_fetches(self) -> int:
        """Fetches that got no answer, and answers for a partition that were errors."""
        return self._failed_before + sum(host.failed_fetches for host in self._hosts.values())

    @property
    def max_lag(self) -> int:
        """The most records that a replica here is behind its leader's high watermark."""
        return max((host.machine.max_lag for host in self._hosts.values()), default=0)

    @property
    def failed_partitions(self) -> int:
        """The number of replicas that cannot store records: until a later try (damaged bytes from the leader, a full
        disk), or until a new leader or a restart (a failed log, a leader that does not have committed records)."""
        return sum(host.machine.broken for host in self._hosts.values())

    @property
    def refused_partitions(self) -> int:
        """The number of replicas that the leader has refused for a while, always for the same reason."""
        return sum(host.machine.refused for host in self._hosts.values())

    @property
    def partitions(self) -> int:
        """The number of replicas here that follow a leader."""
        return len(self._leaders)

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration in the image; -1 without a registration."""
        registered = self._image.brokers.get(self._broker_id)
        return _UNKNOWN if registered is None else registered.broker_epoch

    # Life

    def load(self, image: ClusterImage) -> None:
        """Follow the leaders in this image."""
        self._image = image
        for topic in image.topics.values():
            for number, state in topic.partitions.items():
                self._apply_state(TopicPartition(topic.name, number), state)

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Follow the leaders in the changed image."""
        self._image = image
        if self._is_closed:
            return
        for topic in delta.deleted_topics:
            for number in topic.partitions:
                key = PartitionKey(topic.topic_id, number)
                self._drop(key)
                self._left.pop(key, None)
        for topic in delta.created_topics:
            for number, state in topic.partitions.items():
                self._apply_state(TopicPartition(topic.name, number), state)
        for topic_partition, state in delta.changed_partitions:
            self._apply_state(topic_partition, state)

    def is_fetching(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition is fetched from a leader."""
        state = self._image.partition(*topic_partition)
        key = None if state is None else PartitionKey(state.topic_id, topic_partition.partition)
        return key is not None and any(host.has(key) for host in self._hosts.values())

    def follow_anew(self, topic_partition: TopicPartition) -> None:
        """Follow the partition from the beginning: its log was replaced."""
        state = self._image.partition(*topic_partition)
        if state is not None and not self._is_closed:
            self._drop(PartitionKey(state.topic_id, topic_partition.partition))
            self._apply_state(topic_partition, state)

    def fetch_only_in_sync(self, only: bool, /) -> None:
        """Stop fetching replicas that are out of sync, since the disk cannot store; or fetch them again."""
        self._only_in_sync = only
        self._left.clear()
        if not self._is_closed:
            self.load(self._image)

    def pause(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Do not fetch this replica while its removal is proposed, until `left` or `resume`; only in
        `fetch_only_in_sync`.

        A fetch that was sent before the pause reaches the leader before the controller's decision, unless the fetch
        takes longer than the decision and the propagation of the metadata together.
        """
        self._ignore_images_before(_WHILE_PROPOSED, topic_partition, state)

    def left(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Do not fetch this replica, which the controller has removed, until the image has the new state."""
        self._ignore_images_before(state.partition_epoch, topic_partition, state)

    def resume(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Fetch this replica again if the image makes it a follower: the replica stays, or no proposal is under way."""
        key = PartitionKey(state.topic_id, topic_partition.partition)
        known = self._image.partition(*topic_partition)
        if self._left.pop(key, None) is not None and known is not None and known.topic_id == state.topic_id:
            self._apply_state(topic_partition, known)

    def _ignore_images_before(
        self, partition_epoch: int, topic_partition: TopicPartition, state: PartitionState
    ) -> None:
        if self._only_in_sync and not self._is_closed:
            key = PartitionKey(state.topic_id, topic_partition.partition)
            self._left[key] = partition_epoch
            known = self._image.partition(*topic_partition)
            if known is None or known.topic_id != state.topic_id:
                del self._left[key]  # the topic is deleted: no later image would remove the entry
            else:
                self._apply_state(topic_partition, known)

    def close(self) -> None:
        """Send no more fetches."""
        self._is_closed = True
        self._retry.cancel()
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()
        self._leaders.clear()  # partitions whose flush is under way are not followed any more

    def _apply_state(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        key = PartitionKey(state.topic_id, topic_partition.partition)
        if self._broker_id not in state.replicas or state.leader in (NO_LEADER, self._broker_id):
            self._drop(key)
            return
        if self._only_in_sync and self._broker_id not in state.in_sync_replicas:
            self._drop(key)
            return
        if state.partition_epoch < self._left.get(key, _UNKNOWN):
            self._drop(key)
            return
        leader = _Leader(state.leader, state.leader_epoch)
        if self._leaders.get(key) != leader:
            self._drop(key)
            self._leaders[key] = leader
            self._names[key] = topic_partition
            self._to_begin[key] = None
            if len(self._to_begin) == 1:
                self._clock.call_soon(self._begin_all)

    def _drop(self, key: PartitionKey) -> None:
        leader = self._leaders.pop(key, None)
        if leader is None:
            return
        del self._names[key]
        self._missing.pop(key, None)
        self._unmade.pop(key, None)
        self._to_begin.pop(key, None)
        host = self._hosts.get(leader.broker_id)
        if host is not None:
            host.step(Unfollow(key=key))
            if host.machine.is_idle:
                host.close()
                self._failed_before += host.failed_fetches
                del self._hosts[leader.broker_id]

    def _begin_all(self) -> None:
        """Begin to follow the partitions that wait, in slices: some have to be opened."""
        run_in_slices(map(self._begin, iter(self._next_to_begin, None)), self._clock)

    def _next_to_begin(self) -> PartitionKey | None:
        if self._is_closed or not self._to_begin:
            return None
        key, _ = self._to_begin.popitem(last=False)
        return key

    def _begin(self, key: PartitionKey) -> None:
        """Fetch the partition as soon as its whole log is flushed.

        New logs are made durable together: with thousands of new logs, a flush of each log would keep the disk busy for
        seconds, and the disk would seem to hang.
        """
        leader = self._leaders[key]
        if not self._partitions.is_made(*self._names[key]):
            self._unmade[key] = None
            if len(self._unmade) == 1:
                self._partitions.when_made(self._begin_made)
            return
        partition = self._partitions.find(*self._names[key])
        if partition is None or partition.topic_id != key.topic_id or partition.leader_epoch != leader.leader_epoch:
            # A deleted partition of this name is not removed yet, or the log cannot be opened.
            self._missing[key] = None
            self._retry.set(self._clock.monotonic_ms() + _RETRY_MS)
            return

        def flushed(fault: KafkaError | None) -> None:
            if fault is None and self._leaders.get(key) is leader:
                self._host_of(leader.broker_id).follow(key, partition)

        partition.following.flush(flushed)

    def _begin_made(self) -> None:
        """Begin to fetch the new logs that are durable now, and wait for the other new logs."""
        unmade, self._unmade = self._unmade, {}
        self._begin_too(unmade)

    def _look_again(self) -> None:
        missing, self._missing = self._missing, {}
        self._begin_too(missing)

    def _begin_too(self, keys: dict[PartitionKey, None]) -> None:
        is_idle = not self._to_begin
        self._to_begin.update(keys)
        if is_idle:
            self._begin_all()

    def _host_of(self, leader: BrokerId) -> ReplicaFetcherHost:
        host = self._hosts.get(leader)
        if host is None:
            host = self._hosts[leader] = ReplicaFetcherHost(
                leader,
                broker_id=self._broker_id,
                secret=self._secret,
                partitions=self._partitions,
                peer=self._peer,
                clock=self._clock,
                config=self._config,
                fetches=SessionFetches(broker_id=self._broker_id, secret=self._secret, config=self._config),
                broker_epoch=lambda: self.broker_epoch,
                throttle=self._throttle,
            )
        return host
