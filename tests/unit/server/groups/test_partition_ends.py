"""Ends of partitions that other brokers lead, as a coordinator asks for them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, TopicImage
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tailrace.server.groups import partition_ends
from tailrace.server.groups.partition_ends import PartitionEnds
from testkit.nodes.ports import DeferredPeer

TOPIC_ID = TopicId(bytes(15) + b"\1")
A, B, C = (TopicPartition("orders", number) for number in range(3))


@dataclass
class Replica:
    """A partition of this broker, as far as its end matters."""

    high_watermark: int
    is_leader: bool = False
    leader_epoch_start_offset: int = 0


class Coordinator:
    """A broker that leads none of three partitions: A and B are led by broker 2, C by broker 3, in epoch 5."""

    def __init__(self) -> None:
        self.image = image_with_leaders(2, 2, 3)
        self.here: dict[TopicPartition, Replica] = {}
        self.peer = DeferredPeer()
        self.known: list[Mapping[TopicPartition, int]] = []
        self.ends = PartitionEnds(find_partition=self._find, image=lambda: self.image, peer=self.peer, timeout_ms=5_000)

    def _find(self, topic: str, number: int) -> Any:
        return self.here.get(TopicPartition(topic, number))

    def confirm(self, wanted: Mapping[TopicPartition, int]) -> None:
        self.ends.confirm(wanted, self.known.append)

    def asked(self) -> list[tuple[int, dict[int, int]]]:
        """The leaders that were asked, with the partitions and epochs of each question."""
        return [
            (
                node,
                {
                    partition.partition_index: partition.current_leader_epoch
                    for topic in request.topics
                    for partition in topic.partitions
                },
            )
            for node, request, _ in self.peer.waiting
        ]

    def answer(self, *ends: tuple[int, int], code: ErrorCode = ErrorCode.NONE, place: int = 0) -> None:
        _, request, on_reply = self.peer.waiting.pop(place)
        assert isinstance(request, ListOffsetsRequest)
        on_reply(
            ListOffsetsResponse(
                topics=(
                    ListOffsetsTopicResponse(
                        name="orders",
                        partitions=tuple(
                            ListOffsetsPartitionResponse(partition_index=number, offset=end, error_code=code)
                            for number, end in ends
                        ),
                    ),
                )
            )
        )

    def fail(self) -> None:
        self.peer.waiting.pop(0)[2](None)


def state(leader: int, epoch: int) -> PartitionState:
    return PartitionState(
        topic_id=TOPIC_ID,
        replicas=(BrokerId(2), BrokerId(3)),
        in_sync_replicas=(BrokerId(2), BrokerId(3)),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=1,
        is_recovering=False,
    )


def image_with_leaders(*leaders: int, epoch: int = 5) -> ClusterImage:
    topic = TopicImage(
        name="orders",
        topic_id=TOPIC_ID,
        partitions={number: state(leader, epoch) for number, leader in enumerate(leaders)},
    )
    return replace(EMPTY_IMAGE, topics={"orders": topic}, topic_names={TOPIC_ID: "orders"})


def test_a_replica_that_has_reached_the_offset_answers_without_a_question() -> None:
    broker = Coordinator()
    broker.here[A] = Replica(high_watermark=100)
    broker.confirm({A: 100})
    assert broker.known == [{A: 100}]
    assert not broker.peer.waiting


def test_a_leader_here_is_certain_of_its_end() -> None:
    broker = Coordinator()
    broker.here[A] = Replica(high_watermark=40, is_leader=True)
    broker.confirm({A: 100})
    assert broker.known == [{A: 40}]


def test_the_end_of_a_new_leader_without_a_high_watermark_is_not_known() -> None:
    broker = Coordinator()
    broker.here[A] = Replica(high_watermark=40, is_leader=True, leader_epoch_start_offset=90)
    broker.confirm({A: 80})
    assert broker.known == [{}], "try again"
    broker.confirm({A: 40})
    assert broker.known[1:] == [{A: 40}]


def test_the_leaders_are_asked_together_and_each_once() -> None:
    broker = Coordinator()
    broker.here[A] = Replica(high_watermark=9)
    broker.confirm({A: 10, B: 20, C: 30})
    assert broker.asked() == [(2, {0: 5, 1: 5}), (3, {2: 5})]
    assert broker.peer.timeout_ms == 5_000
    broker.answer((0, 11), (1, 19))
    assert broker.known == []
    broker.answer((2, 31))
    assert broker.known == [{A: 11, B: 19, C: 31}]


def test_questions_wait_while_one_is_under_way() -> None:
    broker = Coordinator()
    broker.confirm({A: 10})
    broker.confirm({A: 12})
    broker.confirm({B: 1})
    assert broker.asked() == [(2, {0: 5})]
    broker.answer((0, 10))
    assert broker.known == [{A: 10}]
    assert broker.asked() == [(2, {0: 5, 1: 5})], "all that wait, in one request"
    broker.answer((0, 12), (1, 3))
    assert broker.known[1:] == [{A: 12}, {B: 3}]
    broker.confirm({C: 1})
    assert broker.asked() == [(3, {2: 5})]


def test_an_end_is_remembered_as_long_as_the_leader_has_its_epoch() -> None:
    broker = Coordinator()
    broker.confirm({A: 10})
    broker.answer((0, 50))
    broker.confirm({A: 50})
    assert broker.known == [{A: 50}, {A: 50}]
    broker.confirm({A: 51})
    assert broker.asked() == [(2, {0: 5})]
    broker.answer((0, 60))
    broker.image = image_with_leaders(3, 2, 3, epoch=6)
    broker.confirm({A: 1})
    assert broker.asked() == [(3, {0: 6})], "another leader may have lost what the last one had"


def test_a_topic_made_anew_has_no_end_of_the_one_before() -> None:
    broker = Coordinator()
    broker.confirm({A: 10})
    broker.answer((0, 50))
    before = broker.image.topics["orders"]
    states = {
        number: replace(partition, topic_id=TopicId(bytes(16))) for number, partition in before.partitions.items()
    }
    broker.image = replace(broker.image, topics={"orders": replace(before, partitions=states)})
    broker.confirm({A: 10})
    assert broker.asked() == [(2, {0: 5})]


def test_only_so_many_ends_are_remembered() -> None:
    broker = Coordinator()
    broker.image = image_with_leaders(*[2] * (partition_ends.MOST_KNOWN + 1))
    wanted = {TopicPartition("orders", number): 1 for number in range(partition_ends.MOST_KNOWN + 1)}
    broker.confirm(wanted)
    broker.answer(*((number, 5) for number in range(len(wanted))))
    assert len(broker.known[0]) == len(wanted)
    broker.confirm({TopicPartition("orders", 0): 1})
    assert broker.asked() == [(2, {0: 5})]


def test_a_leader_that_does_not_answer_leaves_its_partitions_out() -> None:
    broker = Coordinator()
    broker.confirm({A: 10, C: 10})
    broker.fail()
    broker.answer((2, 10))
    assert broker.known == [{C: 10}]


def test_errors_and_strange_answers_leave_partitions_out() -> None:
    broker = Coordinator()
    broker.confirm({A: 10})
    broker.answer((0, 50), code=ErrorCode.FENCED_LEADER_EPOCH)
    broker.confirm({A: 10})
    broker.answer((0, -1))
    broker.confirm({A: 10})
    broker.answer((1, 50), (7, 50))
    assert broker.known == [{}, {}, {}]


def test_a_partition_without_a_leader_is_not_asked_for() -> None:
    broker = Coordinator()
    broker.image = image_with_leaders(-1, 2, 3)
    broker.confirm({A: 10, TopicPartition("gone", 0): 1})
    assert broker.known == [{}]
    assert not broker.peer.waiting
