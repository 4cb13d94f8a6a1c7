"""Tells the active controller which replicas of this node have lost something or cannot store, until it agrees.

Level-triggered: what has failed is kept, and whatever the image says of it is held against that. As long as the image
counts on a failed replica (`metadata.deciding.in_sync_changes`), the controller is asked to take it out: in commands
of at most `MOST_PER_COMMAND` partitions, one at a time, each change on the state that this node knows. After a
refusal it is asked again with the state of then. A stalled replica that no other can stand in for is looked at again
when brokers come or go, when settings change (min.insync.replicas), and now and then.

The answer of the controller is believed before the image says the same: a disk that stands still keeps the image of
this node from going on.

A stalled replica is not fetched while it is asked for (`on_leaving`): otherwise its leader, which gets the answer
first, may see it caught up and put it back in sync. It is fetched again (`on_staying`) when it stays, and without a
decision: the controller has not answered for `UNANSWERED_MS`, or refuses for a reason that another state would not
change. From then on it is fetched until a controller has decided something.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from tailrace.metadata.commands import AlterPartition, InSyncChange, LeaveReason, PartitionsAltered
from tailrace.metadata.deciding.in_sync_changes import is_wanted
from tailrace.metadata.deciding.state_changes import ImageCircumstances
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.server.callbacks import Alarm, run_slice
from tailrace.server.ports import Clock, Controller, Timer

MOST_PER_COMMAND: Final = 1_000
_BACKOFF_MS: Final = 50
_STANDS_ALONE_MS: Final = 1_000
"""The pause until the last copy asks again, if no broker comes or goes before."""
UNANSWERED_MS: Final = 10_000
"""The wait of a replica for an answer without being fetched: an election of the controllers is over by then. Without
any controller the leader keeps the replica in sync, and acks=all waits for it."""
_LEFT: Final = "NONE"
"""In a line of the log: taken out, or out already."""
_OTHER_STATE: Final = frozenset(
    (ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_CONTROLLER)
)
"""Of the controller and this node one knows a later state: perhaps one in which the replica has left."""
_DECIDED: Final = _OTHER_STATE | {ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
"""Refusals of a controller that lets replicas go."""

_logger = logging.getLogger("tailrace.server")

OnReported = Callable[[], None]
OnReplica = Callable[[TopicPartition, PartitionState], None]


class _Failed(NamedTuple):
    """One replica that has failed by itself."""

    leaving: LeaveReason
    topic_id: TopicId


class _Left(NamedTuple):
    """The state in which the controller has let a replica go: what an image of an earlier one says is old."""

    topic_id: TopicId
    partition_epoch: int


class _ProposedLeave(NamedTuple):
    """The proposal to the controller for one partition."""

    topic_partition: TopicPartition
    state: PartitionState
    leaving: LeaveReason


class ReplicaFailures:
    """The failed replicas of one broker. Silent until `start`; `on_image`: when the partitions have their roles."""

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

        `on_leaving`: before the controller is asked to let a stalled one go, in this state; after it comes one of the
        others, unless the directory recovers. `on_left`: the state in which the controller has let it go; this node's
        image may not bring it for long. `on_staying`: it stays for now, or nothing is decided.
        """
        self._on_leaving = on_leaving
        self._on_left = on_left
        self._on_staying = on_staying
        self._broker_id = broker_id
        self._controller = controller
        self._clock = clock
        self._failed: dict[TopicPartition, _Failed] = {}
        self._is_directory_stalled = False
        self._to_look_at: dict[TopicPartition, None] = {}
        self._stays: dict[TopicPartition, None] = {}  # stalled, and no other could stand in
        self._left: dict[TopicPartition, _Left] = {}
        self._paused: dict[TopicPartition, PartitionState] = {}  # told that they leave, and nothing else since
        self._is_undecided = False  # nothing is paused until a controller has decided something
        self._unanswered = Alarm(clock, self._stay_undecided)
        self._to_fence: dict[TopicPartition, None] = {}  # lost, and the leader may still count on what they fetched
        self._given_up: set[TopicPartition] = set()  # named to lead with what they have, and cannot
        self._waiting: list[OnReported] = []
        self._said: frozenset[str] = frozenset()
        self._is_started = self._is_stopped = self._is_busy = self._is_planned = False
        self._again: Timer | None = None
        self._ask_alone_again: Timer | None = None

    # State that is seen from outside

    @property
    def lost_replicas(self) -> tuple[TopicPartition, ...]:
        """Those that lack, or may lack, something that they have acknowledged."""
        return tuple(one for one, failed in self._failed.items() if failed.leaving is LeaveReason.LOST)

    def is_lost(self, topic_partition: TopicPartition) -> bool:
        """Whether this replica was reported as `lost`, and has not recovered."""
        failed = self._failed.get(topic_partition)
        return failed is not None and failed.leaving is LeaveReason.LOST

    def leaving_of(self, topic_partition: TopicPartition) -> LeaveReason | None:
        """The failure of this replica; None if it is well."""
        failed = self._failed.get(topic_partition)
        if failed is not None:
            return failed.leaving
        return LeaveReason.STALLED if self._is_directory_stalled else None

    @property
    def failed_count(self) -> int:
        """Replicas that have failed by themselves, not with their directory."""
        return len(self._failed)

    # Events

    def lost(self, topic_partition: TopicPartition) -> None:
        """This replica lacks, or may lack, something that it has acknowledged."""
        self._add(topic_partition, LeaveReason.LOST)

    def stalled(self, topic_partition: TopicPartition) -> None:
        """This replica has everything, and cannot store more for now. One that is lost stays lost."""
        if not self.is_lost(topic_partition):
            self._add(topic_partition, LeaveReason.STALLED)

    def recovered(self, topic_partition: TopicPartition) -> None:
        """This replica is well again; what it lacks, it has been fetched, or will be before it is in sync."""
        self._forget(topic_partition)
        self._call_waiting()

    def directory_stalled(self) -> None:
        """No replica of this node can store now, or had better not.

        Those stay without which fewer than min.insync.replicas would be in sync: nothing would be committed without
        them either, and nodes that share one disk do not drop each other.
        """
        self._is_directory_stalled = True
        self._look_at_all()

    def given_up(self, topic_partition: TopicPartition) -> None:
        """This replica was named to lead although it is lost, and its log cannot be cut: it leaves after all."""
        self._given_up.add(topic_partition)
        self._look_at((topic_partition,))

    def resumed(self, topic_partition: TopicPartition) -> None:
        """This replica can store again. One that is lost stays lost."""
        if not self.is_lost(topic_partition):
            self.recovered(topic_partition)

    def directory_recovered(self) -> None:
        """They can again. All of them are fetched again by then."""
        self._is_directory_stalled = self._is_undecided = False
        self._paused.clear()
        self._unanswered.cancel()
        own = self._failed
        self._left = {one: left for one, left in self._left.items() if one in own}
        self._stays = {one: None for one in self._stays if one in own}

    def when_reported(self, callback: OnReported) -> None:
        """Call `callback` once the image counts on no replica that is lost; perhaps at once."""
        self._waiting.append(callback)
        self._call_waiting()

    # Life

    def start(self) -> None:
        """This broker is registered, and its image is one that it has acted on: go on from there."""
        self._is_started = True
        self._look_at(self._failed)
        if self._is_directory_stalled:
            self._look_at_all()
        self._call_waiting()

    def stop(self) -> None:
        """Ask for nothing more; callbacks that wait are not called."""
        self._is_stopped = True
        self._waiting.clear()
        self._unanswered.cancel()
        for timer in (self._again, self._ask_alone_again):
            if timer is not None:
                timer.cancel()

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Hold what has changed against what has failed."""
        if not self._failed and not self._is_directory_stalled and not self._waiting:
            return
        for topic in delta.deleted_topics:
            for number in topic.partitions:
                self._forget_deleted(TopicPartition(topic.name, number), topic.topic_id)
        self._look_at(one for one, _ in delta.changed_partitions)
        for topic in delta.created_topics:
            self._look_at(TopicPartition(topic.name, number) for number in topic.partitions)
        if delta.changed_brokers or delta.changed_configs:
            self._look_at_those_that_stay()
        self._call_waiting()

    # Looking

    def _add(self, topic_partition: TopicPartition, leaving: LeaveReason) -> None:
        topic = self._controller.image.topics.get(topic_partition.topic)
        if topic is not None:
            known = self._failed.get(topic_partition)
            if known is not None and known.topic_id != topic.topic_id:
                self._forget(topic_partition)  # of a deleted topic of this name
            self._failed[topic_partition] = _Failed(leaving, topic.topic_id)
            self._left.pop(topic_partition, None)
            if leaving is LeaveReason.LOST:
                self._to_fence[topic_partition] = None
            self._look_at((topic_partition,))

    def _forget(self, topic_partition: TopicPartition) -> None:
        self._failed.pop(topic_partition, None)
        self._left.pop(topic_partition, None)
        self._stays.pop(topic_partition, None)
        self._stay(topic_partition)
        self._to_fence.pop(topic_partition, None)
        self._given_up.discard(topic_partition)

    def _forget_deleted(self, topic_partition: TopicPartition, topic_id: TopicId) -> None:
        """This topic is deleted. Its name may belong to another one, of which a replica has failed already."""
        failed = self._failed.get(topic_partition)
        if failed is None or failed.topic_id == topic_id:
            self._forget(topic_partition)

    def _look_at(self, topic_partitions: Iterable[TopicPartition]) -> None:
        if self._is_directory_stalled:
            self._to_look_at.update(dict.fromkeys(topic_partitions))
        else:
            self._to_look_at.update(dict.fromkeys(one for one in topic_partitions if one in self._failed))
        if self._to_look_at:
            self._plan()

    def _look_at_all(self) -> None:
        self._look_at(
            TopicPartition(topic.name, number)
            for topic in self._controller.image.topics.values()
            for number, state in topic.partitions.items()
            if self._broker_id in state.replicas
        )

    def _look_at_those_that_stay(self) -> None:
        stays, self._stays = self._stays, {}
        self._look_at(stays)

    def _plan(self) -> None:
        if self._is_started and not (self._is_busy or self._is_planned or self._is_stopped):
            self._is_planned = True
            self._clock.call_soon(self._propose)

    def _plan_again(self) -> None:
        """Soon, but not at once: the image may have news by then."""
        if self._again is not None:
            self._again.cancel()
        self._again = self._clock.call_at(self._clock.monotonic_ms() + _BACKOFF_MS, self._plan)

    def _propose(self) -> None:
        self._is_planned = False
        if self._is_busy or self._is_stopped:
            return
        proposed: list[_ProposedLeave] = []
        run_slice(self._proposing(proposed), self._clock)
        if proposed:
            self._ask(proposed)
        elif self._to_look_at:
            self._plan()

    def _proposing(self, proposed: list[_ProposedLeave]) -> Iterator[None]:
        while self._to_look_at and len(proposed) < MOST_PER_COMMAND:
            topic_partition = next(iter(self._to_look_at))
            del self._to_look_at[topic_partition]
            one = self._due(topic_partition)
            if one is not None:
                proposed.append(one)
            else:
                self._stay(topic_partition)
            yield

    def _due(self, topic_partition: TopicPartition) -> _ProposedLeave | None:
        """The proposal that is due for this partition; None if there is none."""
        image = self._controller.image
        state = image.partition(*topic_partition)
        failed = self._failed.get(topic_partition)
        if failed is not None and (state is None or state.topic_id != failed.topic_id):
            self._forget(topic_partition)  # its topic is deleted
        leaving = self.leaving_of(topic_partition)
        if state is None or leaving is None or not self._counts_on(topic_partition, state, leaving):
            return None
        if leaving is LeaveReason.LOST and self._is_named(topic_partition, state):
            return None
        is_of_directory = leaving is LeaveReason.STALLED and topic_partition not in self._failed
        if is_of_directory and not self._leaves_enough(image, state):
            self._stays[topic_partition] = None
            return None
        return _ProposedLeave(topic_partition, state, leaving)

    def _counts_on(self, topic_partition: TopicPartition, state: PartitionState, leaving: LeaveReason) -> bool:
        is_to_fence = topic_partition in self._to_fence and state.leader != NO_LEADER
        if self._broker_id not in state.replicas or not (is_to_fence or is_wanted(self._broker_id, state, leaving)):
            return False
        left = self._left.get(topic_partition)
        return left is None or left.topic_id != state.topic_id or left.partition_epoch <= state.partition_epoch

    def _is_named(self, topic_partition: TopicPartition, state: PartitionState) -> bool:
        """Whether an administrator has chosen this replica with what it lacks: `replica_repairs` cuts its log."""
        is_named = state.accepts_loss and state.leader == self._broker_id
        return is_named and topic_partition not in self._given_up

    def _leaves_enough(self, image: ClusterImage, state: PartitionState) -> bool:
        circumstances = ImageCircumstances(image)
        others = [one for one in state.in_sync_replicas if one != self._broker_id and circumstances.is_alive(one)]
        return len(others) >= min(circumstances.min_in_sync_replicas(state.topic_id), len(state.replicas))

    # Asking

    def _ask(self, proposed: list[_ProposedLeave]) -> None:
        self._is_busy = True
        self._pause(proposed)
        registered = self._controller.image.brokers.get(self._broker_id)
        command = AlterPartition(
            broker_id=self._broker_id,
            broker_epoch=-1 if registered is None else registered.broker_epoch,
            changes=tuple(
                InSyncChange(
                    topic_id=one.state.topic_id,
                    partition=one.topic_partition.partition,
                    leader_epoch=one.state.leader_epoch,
                    partition_epoch=one.state.partition_epoch,
                    in_sync_replicas=(),
                    leaving=one.leaving,
                )
                for one in proposed
            ),
        )
        self._controller.submit(command, lambda answer: self._answered(proposed, answer))

    def _pause(self, proposed: list[_ProposedLeave]) -> None:
        """Before they are asked for: the controller's decision may reach their leaders before its answer comes here."""
        if self._is_undecided:
            return
        for one in proposed:
            if one.leaving is LeaveReason.STALLED:
                self._paused[one.topic_partition] = one.state
                self._on_leaving(one.topic_partition, one.state)
        if self._paused:
            self._unanswered.set(self._clock.monotonic_ms() + UNANSWERED_MS)

    def _stay(self, topic_partition: TopicPartition) -> None:
        state = self._paused.pop(topic_partition, None)
        if state is not None:
            self._on_staying(topic_partition, state)

    def _stay_undecided(self) -> None:
        self._is_undecided = True
        for topic_partition in list(self._paused):
            self._stay(topic_partition)

    def _answered(self, proposed: list[_ProposedLeave], answer: Any) -> None:
        self._is_busy = False
        if self._is_stopped:
            return
        if isinstance(answer, PartitionsAltered):
            outcomes: list[PartitionState | KafkaError] = [outcome.result for outcome in answer.outcomes]
        else:
            assert isinstance(answer, KafkaError), f"{answer} is no answer to AlterPartition"
            outcomes = [answer] * len(proposed)
        answers: Counter[str] = Counter()
        self._update_undecided(outcomes)
        for one, outcome in zip(proposed, outcomes, strict=True):
            answers[outcome.code.name if isinstance(outcome, KafkaError) else _LEFT] += 1
            self._on_outcome(one, outcome)
        self._log_answers(proposed, answers)
        if len(answers) > 1 or _LEFT not in answers:
            self._plan_again()
        else:
            self._plan()
        self._call_waiting()

    def _update_undecided(self, outcomes: list[PartitionState | KafkaError]) -> None:
        self._unanswered.cancel()
        self._is_undecided = all(isinstance(one, KafkaError) and one.code not in _DECIDED for one in outcomes)

    def _log_answers(self, proposed: list[_ProposedLeave], answers: Counter[str]) -> None:
        """One line per command that has changed something, and one for other answers until there are new ones."""
        is_news = _LEFT in answers or not answers.keys() <= self._said
        self._said = frozenset() if _LEFT in answers else self._said | answers.keys()
        _logger.log(
            logging.WARNING if is_news else logging.DEBUG,
            "event=replicas-leave broker=%d partitions=%d first=%s kinds=%s answers=%s",
            self._broker_id,
            len(proposed),
            proposed[0].topic_partition,
            _shown(Counter(one.leaving.name for one in proposed)),
            _shown(answers),
        )

    def _on_outcome(self, one: _ProposedLeave, outcome: PartitionState | KafkaError) -> None:
        topic_partition = one.topic_partition
        known = self._controller.image.partition(*topic_partition)
        if known is None or known.topic_id != one.state.topic_id:
            return  # its topic was deleted meanwhile, and what is kept here is of another one with its name
        if not isinstance(outcome, KafkaError):
            self._left[topic_partition] = _Left(one.state.topic_id, outcome.partition_epoch)
            self._given_up.discard(topic_partition)
            self._to_fence.pop(topic_partition, None)
            self._paused.pop(topic_partition, None)
            self._on_left(topic_partition, outcome)
        elif outcome.code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE:
            self._stay(topic_partition)
            self._stays[topic_partition] = None
            self._ask_those_that_stay_later()
        else:
            if outcome.code not in _OTHER_STATE:
                self._stay(topic_partition)
            self._to_look_at[topic_partition] = None

    def _ask_those_that_stay_later(self) -> None:
        if self._ask_alone_again is None:

            def ask() -> None:
                self._ask_alone_again = None
                self._look_at_those_that_stay()

            due_ms = self._clock.monotonic_ms() + _STANDS_ALONE_MS
            self._ask_alone_again = self._clock.call_at(due_ms, ask)

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


def _shown(counts: Counter[str]) -> str:
    return ",".join(f"{name}:{count}" for name, count in sorted(counts.items()))
