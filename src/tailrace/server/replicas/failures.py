"""Reports of failed replicas to the active controller: replicas that have lost records, or that cannot store.

The failures are kept, and compared with the image at each change. As long as the image counts on a failed replica
(`metadata.deciding.in_sync_changes`), this node proposes to remove the replica from the ISR: in commands of at most
`MOST_PER_COMMAND` partitions, one command at a time, each change based on the state that this node has. After a refusal
the proposal is repeated with the state at that time. A stalled replica that no other replica can replace is considered
again when brokers come or go, when settings change (min.insync.replicas), and once a second.

The controller's answer takes effect before the image shows the change: a disk that hangs delays the image of this node.

A stalled replica is not fetched while its removal is proposed (`on_leaving`): otherwise the leader, which gets the
decision first, may see that the replica is caught up, and add it to the ISR again. The replica is fetched again
(`on_staying`) when the controller lets it stay. The replica is fetched again, too, without a decision: when the
controller has not answered for `UNANSWERED_MS`, or refuses for a reason that holds in every state. Then replicas are
fetched until a controller has decided.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from tailrace.metadata.commands import InSyncChange, LeaveReason
from tailrace.metadata.deciding.in_sync_changes import is_wanted
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.metadata.image_draft import ImageCircumstances
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.server.callbacks import Alarm
from tailrace.server.ports import Clock, Controller
from tailrace.server.replicas.proposals import Outcomes, Proposals, codes_of, shown

MOST_PER_COMMAND: Final = 1_000
_BACKOFF_MS: Final = 50
_LAST_COPY_PAUSE_MS: Final = 1_000
"""The pause before the removal of a last copy is proposed again, unless a broker comes or goes earlier."""
UNANSWERED_MS: Final = 10_000
"""The time without an answer after which a replica is fetched again: an election of the controllers is over by then.
Without a controller the leader keeps the replica in sync, and acks=all waits for this replica."""
_LEFT: Final = ErrorCode.NONE.name  # in a log line: the replica is removed from the ISR, or was not in it
_OTHER_STATE: Final = frozenset(
    (ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_CONTROLLER)
)
"""Refusals because the controller or this node has a later state, in which the replica may have left."""
_DECIDED: Final = _OTHER_STATE | {ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
"""Refusals by which the controller has decided on the proposal."""

_logger = logging.getLogger("tailrace.server")

OnReported = Callable[[], None]
OnReplica = Callable[[TopicPartition, PartitionState], None]


class _Failed(NamedTuple):
    """The failure of a single replica, not of the whole directory."""

    leaving: LeaveReason
    topic_id: TopicId


class _Left(NamedTuple):
    """The state in which the controller has removed a replica: an image with an earlier partition epoch is out of
    date."""

    topic_id: TopicId
    partition_epoch: int


class _ProposedLeave(NamedTuple):
    """The proposed removal of this node's replica of one partition."""

    topic_partition: TopicPartition
    state: PartitionState
    leaving: LeaveReason


class ReplicaFailures:
    """The failed replicas of one broker. Nothing is sent before `start`; `on_image` follows the partitions' new
    roles."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        controller: Controller,
        clock: Clock,
        on_leaving: OnReplica,
        on_left: OnReplica,
        on_staying: OnReplica,
    ) -> None:
        """Set the callbacks of a decision.

        `on_leaving`: the removal of a stalled replica, in this state of the partition, is about to be proposed;
        `on_left` or `on_staying` follows, unless the directory recovers. `on_left`: the controller has removed the
        replica; this node's image may get the passed state much later. `on_staying`: the replica stays for now, or the
        controller has not decided.
        """
        self._on_leaving = on_leaving
        self._on_left = on_left
        self._on_staying = on_staying
        self._broker_id = broker_id
        self._controller = controller
        self._clock = clock
        self._failed: dict[TopicPartition, _Failed] = {}
        self._is_directory_stalled = False
        self._to_look_at: OrderedDict[TopicPartition, None] = OrderedDict()
        self._last_copies: dict[TopicPartition, None] = {}  # stalled, and no other replica could replace them
        self._left: dict[TopicPartition, _Left] = {}
        self._paused: dict[TopicPartition, PartitionState] = {}  # `on_leaving` was called, and no other callback since
        self._is_undecided = False  # if True, no fetch is paused until a controller has decided
        self._unanswered = Alarm(clock, self._resume_undecided)
        self._to_fence: dict[TopicPartition, None] = {}  # lost replicas whose fetches the leader may still count
        self._given_up: set[TopicPartition] = set()  # chosen to lead in spite of the loss, but not able to
        self._waiting: list[OnReported] = []
        self._logged_answers: frozenset[str] = frozenset()
        self._proposals = Proposals[_ProposedLeave](
            broker_id, controller, clock, collect=self._proposing, change=_change_of, on_outcomes=self._on_outcomes
        )
        self._is_started = False
        self._again = Alarm(clock, self._plan)
        self._last_copies_due = Alarm(clock, self._look_at_last_copies)

    # State that is seen from outside

    @property
    def lost_replicas(self) -> tuple[TopicPartition, ...]:
        """The replicas that have lost, or may have lost, acknowledged records."""
        return tuple(replica for replica, failed in self._failed.items() if failed.leaving is LeaveReason.LOST)

    def is_lost(self, topic_partition: TopicPartition) -> bool:
        """Whether this replica was reported as `lost`, and has not recovered."""
        failed = self._failed.get(topic_partition)
        return failed is not None and failed.leaving is LeaveReason.LOST

    def leaving_of(self, topic_partition: TopicPartition) -> LeaveReason | None:
        """The failure of this replica; None without a failure."""
        failed = self._failed.get(topic_partition)
        if failed is not None:
            return failed.leaving
        return LeaveReason.STALLED if self._is_directory_stalled else None

    # Events

    def lost(self, topic_partition: TopicPartition) -> None:
        """Report a replica that has lost, or may have lost, acknowledged records."""
        self._add(topic_partition, LeaveReason.LOST)

    def stalled(self, topic_partition: TopicPartition) -> None:
        """Report a replica that has all its records, and cannot store more for now. A lost replica stays lost."""
        if not self.is_lost(topic_partition):
            self._add(topic_partition, LeaveReason.STALLED)

    def recovered(self, topic_partition: TopicPartition) -> None:
        """Clear the failure of a replica, which fetches missing records before it is in sync again."""
        self._forget(topic_partition)
        self._call_waiting()

    def directory_stalled(self) -> None:
        """Report that the directory cannot store records, so that no replica of this node can.

        A replica stays in sync if fewer than min.insync.replicas replicas would be in sync without it: no record would
        be committed then either, and nodes on the same disk would remove each other's replicas.
        """
        self._is_directory_stalled = True
        self._look_at_all()

    def given_up(self, topic_partition: TopicPartition) -> None:
        """Report a lost replica that was chosen to lead, and whose log cannot be cut: the replica leaves."""
        self._given_up.add(topic_partition)
        self._look_at((topic_partition,))

    def resumed(self, topic_partition: TopicPartition) -> None:
        """Report that a replica can store again. A lost replica stays lost."""
        if not self.is_lost(topic_partition):
            self.recovered(topic_partition)

    def directory_recovered(self) -> None:
        """Report that the directory can store again. The caller has begun to fetch all replicas again."""
        self._is_directory_stalled = self._is_undecided = False
        self._paused.clear()
        self._unanswered.cancel()
        own = self._failed
        self._left = {replica: left for replica, left in self._left.items() if replica in own}
        self._last_copies = {replica: None for replica in self._last_copies if replica in own}

    def when_reported(self, callback: OnReported) -> None:
        """Call `callback` once the image counts on no lost replica; perhaps at once."""
        self._waiting.append(callback)
        self._call_waiting()

    # Life

    def start(self) -> None:
        """Begin to propose. Call this when the broker is registered, and has acted on its image."""
        self._is_started = True
        self._look_at(self._failed)
        if self._is_directory_stalled:
            self._look_at_all()
        self._call_waiting()

    def stop(self) -> None:
        """Propose nothing more; callbacks that wait are not called."""
        self._proposals.stop()
        self._waiting.clear()
        for alarm in (self._unanswered, self._again, self._last_copies_due):
            alarm.cancel()

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Compare the changes with the failures."""
        if not self._failed and not self._is_directory_stalled and not self._waiting:
            return
        for topic in delta.deleted_topics:
            for number in topic.partitions:
                self._forget_deleted(TopicPartition(topic.name, number), topic.topic_id)
        self._look_at(topic_partition for topic_partition, _ in delta.changed_partitions)
        for topic in delta.created_topics:
            self._look_at(TopicPartition(topic.name, number) for number in topic.partitions)
        if delta.changed_brokers or delta.changed_configs:
            self._look_at_last_copies()
        self._call_waiting()

    # Looking

    def _add(self, topic_partition: TopicPartition, leaving: LeaveReason) -> None:
        topic = self._controller.image.topics.get(topic_partition.topic)
        if topic is not None:
            known = self._failed.get(topic_partition)
            if known is not None and known.topic_id != topic.topic_id:
                self._forget(topic_partition)  # the failure belongs to a deleted topic with this name
            self._failed[topic_partition] = _Failed(leaving, topic.topic_id)
            self._left.pop(topic_partition, None)
            if leaving is LeaveReason.LOST:
                self._to_fence[topic_partition] = None
            self._look_at((topic_partition,))

    def _forget(self, topic_partition: TopicPartition) -> None:
        self._failed.pop(topic_partition, None)
        self._left.pop(topic_partition, None)
        self._last_copies.pop(topic_partition, None)
        self._resume_fetches(topic_partition)
        self._to_fence.pop(topic_partition, None)
        self._given_up.discard(topic_partition)

    def _forget_deleted(self, topic_partition: TopicPartition, topic_id: TopicId) -> None:
        """Forget a partition of a deleted topic, unless the failure belongs to another topic with this name."""
        failed = self._failed.get(topic_partition)
        if failed is None or failed.topic_id == topic_id:
            self._forget(topic_partition)

    def _look_at(self, topic_partitions: Iterable[TopicPartition]) -> None:
        if self._is_directory_stalled:
            self._to_look_at.update(dict.fromkeys(topic_partitions))
        else:
            self._to_look_at.update(dict.fromkeys(replica for replica in topic_partitions if replica in self._failed))
        if self._to_look_at:
            self._plan()

    def _look_at_all(self) -> None:
        self._look_at(
            TopicPartition(topic.name, number)
            for topic in self._controller.image.topics.values()
            for number, state in topic.partitions.items()
            if self._broker_id in state.replicas
        )

    def _look_at_last_copies(self) -> None:
        last_copies, self._last_copies = self._last_copies, {}
        self._look_at(last_copies)

    def _plan(self) -> None:
        if self._is_started:
            self._proposals.plan()

    def _plan_again(self) -> None:
        """Propose again after a pause: the image may have changed by then."""
        self._again.cancel()
        self._again.set(self._clock.monotonic_ms() + _BACKOFF_MS)

    def _proposing(self, proposed: list[_ProposedLeave]) -> Iterator[None]:
        while self._to_look_at and len(proposed) < MOST_PER_COMMAND:
            topic_partition, _ = self._to_look_at.popitem(last=False)
            leave = self._due(topic_partition)
            if leave is not None:
                proposed.append(leave)
                self._pause_fetches(leave)
            else:
                self._resume_fetches(topic_partition)
            yield

    def _due(self, topic_partition: TopicPartition) -> _ProposedLeave | None:
        """The proposal that is due for this partition, if any."""
        image = self._controller.image
        state = image.partition(*topic_partition)
        failed = self._failed.get(topic_partition)
        if failed is not None and (state is None or state.topic_id != failed.topic_id):
            self._forget(topic_partition)  # its topic is deleted
        leaving = self.leaving_of(topic_partition)
        if state is None or leaving is None or not self._counts_on(topic_partition, state, leaving):
            return None
        if leaving is LeaveReason.LOST and self._is_chosen_to_lead(topic_partition, state):
            return None
        leaves_with_directory = leaving is LeaveReason.STALLED and topic_partition not in self._failed
        if leaves_with_directory and not self._leaves_enough(image, state):
            self._last_copies[topic_partition] = None
            return None
        return _ProposedLeave(topic_partition, state, leaving)

    def _counts_on(self, topic_partition: TopicPartition, state: PartitionState, leaving: LeaveReason) -> bool:
        is_to_fence = topic_partition in self._to_fence and state.leader != NO_LEADER
        if self._broker_id not in state.replicas or not (is_to_fence or is_wanted(self._broker_id, state, leaving)):
            return False
        left = self._left.get(topic_partition)
        return left is None or left.topic_id != state.topic_id or left.partition_epoch <= state.partition_epoch

    def _is_chosen_to_lead(self, topic_partition: TopicPartition, state: PartitionState) -> bool:
        """Whether an administrator has chosen this replica to lead in spite of its loss: `ReplicaRepairs` cuts its
        log."""
        is_chosen = state.accepts_loss and state.leader == self._broker_id
        return is_chosen and topic_partition not in self._given_up

    def _leaves_enough(self, image: ClusterImage, state: PartitionState) -> bool:
        circumstances = ImageCircumstances(image)
        others = [peer for peer in state.in_sync_replicas if peer != self._broker_id and circumstances.is_alive(peer)]
        return len(others) >= min(circumstances.min_in_sync_replicas(state.topic_id), len(state.replicas))

    # The proposal and its answer

    def _pause_fetches(self, leave: _ProposedLeave) -> None:
        """Call `on_leaving` before the proposal: the decision may reach the leaders before the answer reaches this
        node."""
        if self._is_undecided:
            return
        if leave.leaving is LeaveReason.STALLED:
            self._paused[leave.topic_partition] = leave.state
            self._on_leaving(leave.topic_partition, leave.state)
        if self._paused:
            self._unanswered.set(self._clock.monotonic_ms() + UNANSWERED_MS)

    def _resume_fetches(self, topic_partition: TopicPartition) -> None:
        state = self._paused.pop(topic_partition, None)
        if state is not None:
            self._on_staying(topic_partition, state)

    def _resume_undecided(self) -> None:
        self._is_undecided = True
        for topic_partition in list(self._paused):
            self._resume_fetches(topic_partition)

    def _on_outcomes(self, proposed: list[_ProposedLeave], outcomes: Outcomes) -> None:
        if self._proposals.is_stopped:
            return
        answers = codes_of(outcomes)
        self._update_undecided(outcomes)
        for leave, outcome in zip(proposed, outcomes, strict=True):
            self._on_outcome(leave, outcome)
        self._log_answers(proposed, answers)
        if len(answers) > 1 or _LEFT not in answers:
            self._plan_again()
        else:
            self._plan()
        self._call_waiting()

    def _update_undecided(self, outcomes: Outcomes) -> None:
        self._unanswered.cancel()
        self._is_undecided = all(
            isinstance(outcome, KafkaError) and outcome.code not in _DECIDED for outcome in outcomes
        )

    def _log_answers(self, proposed: list[_ProposedLeave], answers: Counter[str]) -> None:
        """Log a line for each command that has removed a replica. Other answers are logged once, until the answers
        change."""
        is_news = _LEFT in answers or not answers.keys() <= self._logged_answers
        self._logged_answers = frozenset() if _LEFT in answers else self._logged_answers | answers.keys()
        _logger.log(
            logging.WARNING if is_news else logging.DEBUG,
            "event=replicas-leave broker=%d partitions=%d first=%s kinds=%s answers=%s",
            self._broker_id,
            len(proposed),
            proposed[0].topic_partition,
            shown(Counter(leave.leaving.name for leave in proposed)),
            shown(answers),
        )

    def _on_outcome(self, leave: _ProposedLeave, outcome: PartitionState | KafkaError) -> None:
        topic_partition = leave.topic_partition
        known = self._controller.image.partition(*topic_partition)
        if known is None or known.topic_id != leave.state.topic_id:
            return  # its topic was deleted meanwhile, and the failure belongs to another topic with the same name
        if not isinstance(outcome, KafkaError):
            self._left[topic_partition] = _Left(leave.state.topic_id, outcome.partition_epoch)
            self._given_up.discard(topic_partition)
            self._to_fence.pop(topic_partition, None)
            self._paused.pop(topic_partition, None)
            self._on_left(topic_partition, outcome)
        elif outcome.code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE:
            self._resume_fetches(topic_partition)
            self._last_copies[topic_partition] = None
            self._last_copies_due.set(self._clock.monotonic_ms() + _LAST_COPY_PAUSE_MS)
        else:
            if outcome.code not in _OTHER_STATE:
                self._resume_fetches(topic_partition)
            self._to_look_at[topic_partition] = None

    def _call_waiting(self) -> None:
        if not self._waiting or not self._is_started or any(map(self._is_counted_on_though_lost, self.lost_replicas)):
            return
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def _is_counted_on_though_lost(self, topic_partition: TopicPartition) -> bool:
        state = self._controller.image.partition(*topic_partition)
        if state is None or state.topic_id != self._failed[topic_partition].topic_id:
            return False
        return self._broker_id in state.replicas and is_wanted(self._broker_id, state, LeaveReason.LOST)


def _change_of(leave: _ProposedLeave) -> InSyncChange:
    return InSyncChange(
        topic_id=leave.state.topic_id,
        partition=leave.topic_partition.partition,
        leader_epoch=leave.state.leader_epoch,
        partition_epoch=leave.state.partition_epoch,
        in_sync_replicas=(),
        leaving=leave.leaving,
    )
