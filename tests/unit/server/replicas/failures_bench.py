"""Failed replicas of broker 1, and a controller that decides when the test says so."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tailrace.metadata.commands import InSyncOutcome, LeaveReason, PartitionsAltered
from tailrace.metadata.image import ALL_BROKERS, ClusterImage, ImageDelta, TopicImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.server.replicas.failures import ReplicaFailures
from tailrace.testing.clock import ManualClock
from testkit.nodes.data_path import BROKER, topic_id_of
from testkit.nodes.ports import DeferredController, broker_images

TOPIC_ID = topic_id_of("orders")


def state(
    in_sync: Sequence[int], *, leader: int = 1, eligible: Sequence[int] = (), last_known: Sequence[int] = ()
) -> PartitionState:
    return PartitionState(
        topic_id=TOPIC_ID,
        replicas=(BrokerId(1), BrokerId(2), BrokerId(3)),
        in_sync_replicas=tuple(map(BrokerId, in_sync)),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(4),
        partition_epoch=7,
        eligible_leader_replicas=tuple(map(BrokerId, eligible)),
        last_known_leaders=tuple(map(BrokerId, last_known)),
    )


class FailuresBench:
    def __init__(self, *states: PartitionState) -> None:
        self.clock = ManualClock()
        topic = TopicImage(name="orders", topic_id=TOPIC_ID, partitions=dict(enumerate(states)))
        self.controller = DeferredController(
            ClusterImage(
                topics={"orders": topic},
                topic_names={TOPIC_ID: "orders"},
                brokers=broker_images(),
                configs={ALL_BROKERS: {"min.insync.replicas": "2"}},
            )
        )
        self.decisions: list[tuple[str, int]] = []
        """The decisions that each replica received, by its number, in order."""
        self.failures = self.new_failures()
        self.failures.start()
        self.reported: list[bool] = []

    def new_failures(self, **callbacks: Callable[[TopicPartition, PartitionState], None]) -> ReplicaFailures:
        """Failures that note the decisions, but for these callbacks."""
        notes = {f"on_{what}": self._note(what) for what in ("leaving", "left", "staying")}
        return ReplicaFailures(broker_id=BROKER, controller=self.controller, clock=self.clock, **{**notes, **callbacks})

    def _note(self, what: str) -> Callable[[TopicPartition, PartitionState], None]:
        return lambda topic_partition, state: self.decisions.append((what, topic_partition.partition))

    def new_decisions(self) -> list[tuple[str, int]]:
        """The decisions that replicas received since the last call."""
        self.clock.advance(0)
        decisions, self.decisions[:] = list(self.decisions), []
        return decisions

    @property
    def proposals(self) -> list[list[tuple[int, LeaveReason | None, int]]]:
        """(partition, kind, partition epoch) of each command that waits."""
        self.clock.advance(0)
        return [
            [(change.partition, change.leaving, change.partition_epoch) for change in command.changes]
            for command, _ in self.controller.waiting
        ]

    def answer(self, *results: PartitionState | KafkaError, refusal: KafkaError | None = None) -> None:
        command, on_done = self.controller.waiting.pop(0)
        pairs = zip(command.changes, results, strict=True) if refusal is None else ()
        outcomes = tuple(
            InSyncOutcome(topic_id=TOPIC_ID, partition=change.partition, result=result) for change, result in pairs
        )
        on_done(refusal or PartitionsAltered(outcomes=outcomes))

    def take(self, number: int, changed: PartitionState | None) -> None:
        """The image says something else of one partition; None: its topic is deleted."""
        image = self.controller.image
        topic = image.topics["orders"]
        if changed is None:
            self.controller.image = replace(image, topics={}, topic_names={})
            delta = ImageDelta(deleted_topics=(topic,))
        else:
            partitions = {**topic.partitions, number: changed}
            self.controller.image = replace(image, topics={"orders": replace(topic, partitions=partitions)})
            delta = ImageDelta(changed_partitions=((TopicPartition("orders", number), changed),))  # type: ignore[arg-type]
        self.failures.on_image(self.controller.image, delta)

    def leave(self, left: PartitionState) -> None:
        """The controller takes the replica of partition 0 out, and the image has this state."""
        self.answer(left)
        self.take(0, left)

    def fence(self, number: int, *, fenced: bool = True) -> None:
        image = self.controller.image
        broker = replace(image.brokers[BrokerId(number)], fenced=fenced)
        self.controller.image = replace(image, brokers={**image.brokers, BrokerId(number): broker})
        self.failures.on_image(self.controller.image, ImageDelta(changed_brokers=(BrokerId(number),)))

    def when_reported(self) -> None:
        self.failures.when_reported(lambda: self.reported.append(True))


def lost_bench(first: PartitionState) -> FailuresBench:
    """A lost replica; the controller has been asked to take it out."""
    bench = FailuresBench(first)
    bench.failures.lost(orders())
    assert bench.proposals
    return bench


def orders(number: int = 0) -> TopicPartition:
    return TopicPartition("orders", number)


def after(before: PartitionState, *in_sync: int, leader: int) -> PartitionState:
    members = tuple(map(BrokerId, in_sync))
    return replace(
        before,
        in_sync_replicas=members,
        leader=BrokerId(leader),
        eligible_leader_replicas=(),
        last_known_leaders=(),
        partition_epoch=before.partition_epoch + 1,
    )


def stalled_bench(*states: PartitionState) -> FailuresBench:
    bench = FailuresBench(*states)
    bench.failures.directory_stalled()
    return bench


def refusal(code: ErrorCode) -> KafkaError:
    return KafkaError(code, "not now")


def named(before: PartitionState) -> PartitionState:
    """An administrator has chosen this broker with the records that it has left."""
    return replace(
        after(before, 1, leader=1),
        leader_epoch=LeaderEpoch(before.leader_epoch + 1),
        is_recovering=True,
        accepts_loss=True,
    )


def leaderless_bench() -> tuple[FailuresBench, PartitionState]:
    """A lost replica of a partition without a leader, and the state of the partition."""
    bench = FailuresBench(leaderless := state((), leader=-1))
    bench.failures.lost(orders())
    return bench, leaderless
