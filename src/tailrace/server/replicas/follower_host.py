"""The conversation of one follower with one leader: a `replication.follower` machine, its fetches and its timer."""

from collections.abc import Callable
from typing import Any

from tailrace.model.ids import BrokerId
from tailrace.model.machines import Tick
from tailrace.replication.follower import Answered, Event, Follow, PartitionKey, ReplicaFetcher, SendFetch, Unfollow
from tailrace.replication.partition import Partition
from tailrace.replication.replica_fetch import OLDEST_VERSION, Fetches, ReplicaFetchConfig
from tailrace.server.alarm import Alarm
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock, Peer
from tailrace.server.replicas.follower_logs import FollowerLogs, position_of


class FollowerHost:
    """Fetches partitions from one leader."""

    def __init__(
        self,
        leader: BrokerId,
        *,
        partitions: PartitionTable,
        peer: Peer,
        clock: Clock,
        config: ReplicaFetchConfig,
        fetches: Fetches,
        broker_epoch: Callable[[], int],
    ) -> None:
        self.leader = leader
        self.machine = ReplicaFetcher(backoff_ms=config.replica_fetch_backoff_ms)
        self._logs = FollowerLogs(leader, table=partitions, clock=clock, on_done=self.step)
        self._peer = peer
        self._clock = clock
        self._config = config
        self._fetches = fetches
        self._broker_epoch = broker_epoch
        self._alarm = Alarm(clock, lambda: self.step(Tick()))
        self._is_closed = False

    def has(self, key: PartitionKey) -> bool:
        """Whether this partition is fetched."""
        return key in self._logs

    @property
    def failed_fetches(self) -> int:
        """Fetches that got no answer, and answers for a partition that were errors."""
        return self.machine.failed_fetches + self.machine.failed_answers

    def follow(self, key: PartitionKey, partition: Partition) -> None:
        """Fetch this partition from now on; all that its log has counts."""
        self._logs.add(key, partition)
        self.step(Follow(key=key, leader_epoch=partition.leader_epoch, position=position_of(partition)))

    def close(self) -> None:
        """Send nothing more, and drop all answers."""
        self._is_closed = True
        self._logs.close()
        self._alarm.cancel()

    def step(self, event: Event) -> None:
        """Give the machine an event, and do what it wants."""
        if self._is_closed:
            return
        if isinstance(event, Unfollow):
            self._logs.remove(event.key)
        for effect in self.machine.step(event, self._clock.monotonic_ms()):
            if isinstance(effect, SendFetch):
                self._send(effect)
            else:
                self._logs.carry_out(effect)
        deadline_ms = self.machine.next_deadline_ms
        if deadline_ms is not None and not self._is_closed:
            self._alarm.set(deadline_ms)

    def _send(self, effect: SendFetch) -> None:
        request = self._fetches.request(effect.changed, effect.forgotten, broker_epoch=self._broker_epoch())
        # A leader may keep a fetch waiting for as long as it says, and answers then.
        timeout_ms = self._config.replica_fetch_wait_max_ms + self._config.replica_socket_timeout_ms
        self._peer.send(self.leader, request, self._answered, oldest_version=OLDEST_VERSION, timeout_ms=timeout_ms)

    def _answered(self, response: Any) -> None:
        if not self._is_closed:
            self.step(Answered(answers=self._fetches.answers(response)))
