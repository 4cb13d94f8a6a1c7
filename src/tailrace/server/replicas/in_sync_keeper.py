"""Reports the in-sync replicas of the partitions that this node leads to the controller (KIP-497).

A follower's fetch may show that the follower has caught up, and a missing fetch shows that the follower lags. In both
cases the partition makes a proposal. All proposals that are collected within a few milliseconds go to the controller in
one command. One command is under way at a time. A change without a decision is proposed again until the image has the
change; after a refusal another proposal may be due at once (`replication.leadership`, rule 4).

Later fetches need not name a partition again (KIP-227). So if a replica could have joined while a proposal was pending,
it is proposed when the pending proposal has its outcome; a refused replica is proposed again after a while.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tailrace.metadata.commands import InSyncChange, InSyncReplica
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import PartitionState
from tailrace.replication.leadership import AfterAnswer, InSyncProposal
from tailrace.replication.partition import Partition
from tailrace.server.callbacks import Alarm, run_in_slices
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock, Controller
from tailrace.server.replicas.proposals import Outcomes, Proposals, codes_of, shown

_BACKOFF_MS: Final = 50
RECONSIDERED_AFTER_MS: Final = 500
"""The pause before a refused replica is proposed again; about as long as the time to the replica's next fetch outside
of a session."""

_logger = logging.getLogger("tailrace.server")


class _Proposed(NamedTuple):
    """The proposal of a partition."""

    partition: Partition
    proposal: InSyncProposal
    growth: int
    """The number of replicas that would join the ISR."""

    @property
    def is_current(self) -> bool:
        return not self.partition.is_closed and self.partition.in_sync.is_proposed(self.proposal)


class InSyncKeeper:
    """The proposals of all partitions that this node leads, from `start` to `stop`."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        partitions: PartitionTable,
        controller: Controller,
        clock: Clock,
        replica_lag_time_max_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._clock = clock
        self._interval_ms = max(1, replica_lag_time_max_ms // 2)
        self._waiting: OrderedDict[Partition, None] = OrderedDict()
        self._unseen: deque[Partition] = deque()  # to be checked for lagging replicas
        self._image = EMPTY_IMAGE
        self._gone: set[BrokerId] = set()
        self._to_exclude_from: deque[Partition] = deque()
        self._repeated: list[_Proposed] = []
        self._proposals = Proposals[_Proposed](
            broker_id, controller, clock, collect=self._proposing, change=self._change, on_outcomes=self._on_outcomes
        )
        self._next_look = Alarm(clock, self._look_around)
        self._refused: dict[Partition, None] = {}
        self._next_try = Alarm(clock, self._try_again)
        self.expansions = self.shrinks = 0
        """The numbers of changes that the controller has made after proposals."""

    def start(self) -> None:
        """Check for lagging replicas, every half of replica.lag.time.max.ms."""
        self._next_look.set(self._clock.monotonic_ms() + self._interval_ms)

    def stop(self) -> None:
        """Stop proposing."""
        self._proposals.stop()
        self._next_look.cancel()
        self._next_try.cancel()

    def load(self, image: ClusterImage) -> None:
        """Propose the end of the recovery of partitions that this node leads (`PartitionState.is_recovering`)."""
        for topic in image.topics.values():
            self._recover((topic.name, number, state) for number, state in topic.partitions.items())

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Take the changes of an image. Partitions stop waiting for unregistered or fenced brokers. When the outcome of
        a proposal is known, partitions propose the replicas that may join now.

        Call this when the partitions have taken their roles, so that their logs are open.
        """
        self._recover((*topic_partition, state) for topic_partition, state in delta.changed_partitions)
        for topic_partition, state in delta.changed_partitions:
            partition = self._partitions.awake(*topic_partition) if state.leader == self._broker_id else None
            if partition is not None:
                self._propose_next(partition, partition.in_sync.reconsider())
        if self._waiting:
            self._proposals.plan()
        changed = ((broker_id, image.brokers.get(broker_id)) for broker_id in delta.changed_brokers)
        gone = [broker_id for broker_id, broker in changed if broker is None or not broker.is_alive]
        self._image = image
        if gone:
            is_under_way = bool(self._to_exclude_from)
            self._gone.update(gone)
            self._to_exclude_from = deque(self._partitions)
            if not is_under_way:
                run_in_slices(self._excluding(), self._clock)

    def _excluding(self) -> Iterator[None]:
        """Exclude the brokers that are gone, and have not come back meanwhile, from all partitions."""
        image = None
        while self._to_exclude_from:
            if image is not self._image:
                image = self._image
                self._gone = {
                    broker_id
                    for broker_id in self._gone
                    if (broker := image.brokers.get(broker_id)) is None or not broker.is_alive
                }
            if not self._gone:
                break
            self._to_exclude_from.popleft().in_sync.exclude(self._gone)
            yield
        self._to_exclude_from.clear()
        self._gone.clear()

    def _recover(self, partitions: Iterable[tuple[str, int, PartitionState]]) -> None:
        for topic, number, state in partitions:
            if state.is_recovering and state.leader == self._broker_id:
                partition = self._partitions.find(topic, number)
                if partition is not None:
                    self.consider(partition)

    def consider(self, partition: Partition) -> None:
        """Ask this partition for a proposal soon."""
        self._waiting[partition] = None
        self._proposals.plan()

    def _look_around(self) -> None:
        self.start()
        self._unseen = deque(self._partitions)
        self._proposals.plan()

    def _proposing(self, proposed: list[_Proposed]) -> Iterator[None]:
        repeated, self._repeated = self._repeated, []
        proposed += (entry for entry in repeated if entry.is_current)
        while (partition := self._next_partition()) is not None:
            proposal = partition.in_sync.propose()
            if proposal is not None and partition.state is not None:
                growth = len(proposal.members) - len(partition.state.in_sync_replicas)
                proposed.append(_Proposed(partition, proposal, growth))
            yield

    def _next_partition(self) -> Partition | None:
        if self._waiting:
            partition, _ = self._waiting.popitem(last=False)
            return partition
        return self._unseen.popleft() if self._unseen else None

    def _change(self, proposed: _Proposed) -> InSyncChange:
        partition, proposal = proposed.partition, proposed.proposal
        return InSyncChange(
            topic_id=partition.topic_id,
            partition=partition.topic_partition.partition,
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            in_sync_replicas=tuple(
                InSyncReplica(
                    broker_id=member,
                    broker_epoch=self._proposals.broker_epoch if member == self._broker_id else broker_epoch,
                )
                for member, broker_epoch in proposal.members
            ),
        )

    def _on_outcomes(self, proposed: list[_Proposed], outcomes: Outcomes) -> None:
        for entry, outcome in zip(proposed, outcomes, strict=True):
            self._on_outcome(entry, outcome)
        _logger.debug("event=in-sync-answered partitions=%d answers=%s", len(proposed), shown(codes_of(outcomes)))
        if self._repeated:
            self._clock.call_at(self._clock.monotonic_ms() + _BACKOFF_MS, self._proposals.plan)
        elif self._waiting or self._unseen:
            self._proposals.plan()

    def _on_outcome(self, proposed: _Proposed, outcome: PartitionState | KafkaError) -> None:
        partition = proposed.partition
        if partition.is_closed:
            return
        if isinstance(outcome, KafkaError):
            _logger.debug("event=in-sync-refused partition=%s fault=%s", partition.topic_partition, outcome)
        else:
            self.expansions += proposed.growth > 0
            self.shrinks += proposed.growth < 0
            _logger.debug(
                "event=in-sync-changed partition=%s in_sync=%s", partition.topic_partition, outcome.in_sync_replicas
            )
        next_step = partition.in_sync.on_response(proposed.proposal, outcome)
        if next_step is AfterAnswer.REPEAT:
            self._repeated.append(proposed)
        else:
            self._propose_next(partition, next_step)

    def _propose_next(self, partition: Partition, next_step: AfterAnswer) -> None:
        """Ask the partition for its next proposal, now or later, if `next_step` requires a proposal."""
        if next_step is AfterAnswer.PROPOSE_ANEW:
            self._waiting[partition] = None
        elif next_step is AfterAnswer.PROPOSE_LATER:
            self._refused[partition] = None
            self._next_try.set(self._clock.monotonic_ms() + RECONSIDERED_AFTER_MS)

    def _try_again(self) -> None:
        self._waiting.update(self._refused)
        self._refused.clear()
        self._proposals.plan()
