"""The fetches from one leader: the host sends the requests of a replica fetcher to this leader, and passes the answers
back."""

import logging
from collections.abc import Callable
from typing import Any

from tailrace.model.ids import BrokerId
from tailrace.model.machines import Tick
from tailrace.protocol.messages.fetch import FetchRequest, FetchResponse
from tailrace.replication.fetch_requests import OLDEST_VERSION, ReplicaFetchConfig, SessionFetches
from tailrace.replication.fetcher_events import (
    Answered,
    AskLogStart,
    EndWait,
    Event,
    Follow,
    PartitionKey,
    SendFetch,
    Unfollow,
)
from tailrace.replication.partition import Partition
from tailrace.replication.replica_fetcher import ReplicaFetcher
from tailrace.replication.throttle import ReplicationThrottle
from tailrace.server.callbacks import Alarm
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock, Peer
from tailrace.server.replicas.follower_logs import FollowerLogs, position_of
from tailrace.server.replicas.log_starts import LogStarts

_logger = logging.getLogger("tailrace.server")


class ReplicaFetcherHost:
    """The host of a `replication.replica_fetcher` machine: it sends the fetches, and keeps the timer."""

    def __init__(
        self,
        leader: BrokerId,
        *,
        broker_id: BrokerId,
        secret: bytes,
        partitions: PartitionTable,
        peer: Peer,
        clock: Clock,
        config: ReplicaFetchConfig,
        fetches: SessionFetches,
        broker_epoch: Callable[[], int],
        throttle: ReplicationThrottle | None,
    ) -> None:
        self.leader = leader
        self.machine = ReplicaFetcher(backoff_ms=config.replica_fetch_backoff_ms, throttle=throttle)
        self._logs = FollowerLogs(leader, table=partitions, clock=clock, on_done=self.step)
        self._log_starts = LogStarts(
            leader,
            broker_id=broker_id,
            secret=secret,
            peer=peer,
            timeout_ms=config.replica_socket_timeout_ms,
            on_known=self.step,
        )
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
        """The number of fetches that got no answer, and of errors in answers."""
        return self.machine.failed_fetches + self.machine.failed_answers

    def follow(self, key: PartitionKey, partition: Partition) -> None:
        """Fetch this partition from now on. Its whole log must be flushed."""
        self._logs.add(key, partition)
        self.step(Follow(key=key, leader_epoch=partition.leader_epoch, position=position_of(partition)))

    def close(self) -> None:
        """End the session, fetch nothing more, and drop all answers."""
        if self._is_closed:
            return
        self._is_closed = True
        self._logs.close()
        self._alarm.cancel()
        self._end_session()

    def _end_session(self) -> None:
        """End the session at the leader: otherwise it would take the place of another follower's session for a
        while."""
        request = self._fetches.close(broker_epoch=self._broker_epoch())
        if request is not None:
            self._ask(request, lambda _: None)

    def step(self, event: Event) -> None:
        """Pass an event to the machine, and carry its effects out."""
        if self._is_closed:
            return
        if isinstance(event, Unfollow):
            self._logs.remove(event.key)
        for effect in self.machine.step(event, self._clock.monotonic_ms()):
            if isinstance(effect, SendFetch):
                self._send(effect)
            elif isinstance(effect, EndWait):
                self._ask(self._fetches.end_wait(broker_epoch=self._broker_epoch()), lambda _: None)
            elif isinstance(effect, AskLogStart):
                self._ask_log_start(effect)
            else:
                self._logs.carry_out(effect)
        deadline_ms = self.machine.next_deadline_ms
        if deadline_ms is not None and not self._is_closed:
            self._alarm.set(deadline_ms)

    def _ask_log_start(self, effect: AskLogStart) -> None:
        topic_partition = self._logs.topic_partition(effect.key)
        if topic_partition is not None:
            self._log_starts.ask(topic_partition, effect)

    def _send(self, effect: SendFetch) -> None:
        request = self._fetches.request(
            effect.changed, effect.forgotten, has_more=effect.has_more, broker_epoch=self._broker_epoch()
        )
        self._ask(request, self._answered)

    def _ask(self, request: FetchRequest, on_reply: Callable[[Any], None]) -> None:
        if _logger.isEnabledFor(logging.DEBUG):
            _logger.debug(
                "event=replica-fetch leader=%d session=%d epoch=%d partitions=%d forgotten=%d",
                self.leader,
                request.session_id,
                request.session_epoch,
                sum(len(topic.partitions) for topic in request.topics),
                sum(len(topic.partitions) for topic in request.forgotten_topics_data),
            )
        # A leader may delay the answer by the maximum wait of the fetch.
        timeout_ms = request.max_wait_ms + self._config.replica_socket_timeout_ms
        self._peer.send(self.leader, request, on_reply, oldest_version=OLDEST_VERSION, timeout_ms=timeout_ms)

    def _answered(self, response: FetchResponse | None) -> None:
        if _logger.isEnabledFor(logging.DEBUG) and response is not None:
            _logger.debug(
                "event=replica-fetch-answered leader=%d session=%d error=%d partitions=%d",
                self.leader,
                response.session_id,
                response.error_code,
                sum(len(topic.partitions) for topic in response.responses),
            )
        answers = self._fetches.answers(response)
        if self._is_closed:
            self._end_session()  # the answer to a full fetch may have opened another session
        else:
            self.step(Answered(answers=answers))
