from dataclasses import replace
from typing import Any

import pytest

from tailrace.metadata.image import ClusterImage, ConfigResource, ResourceType, TopicImage
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.model.proofs import NO_SECRET, id_of_secret
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from tailrace.replication.partition import Partition
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, Exchange, batch_of, records_of, topic_id_of
from testkit.nodes.ports import DeferredController, DeferredDisk, broker_images


class FollowerReadersBench:
    """Broker 1, which leads a partition that broker 2 follows, in epoch 4."""

    def __init__(self, *, in_sync: tuple[int, ...] = (1, 2), fenced: tuple[int, ...] = ()) -> None:
        self.disk = DeferredDisk()
        self.clock = ManualClock()
        self.controller = DeferredController(ClusterImage(brokers=broker_images({1: 10, 2: 20, 3: 30}, fenced=fenced)))
        self.node = DataPath(
            "/logs", files=SimulatedDisk(), clock=self.clock, disk=self.disk, controller=self.controller
        )
        self.partition: Partition = self.node.create("orders", leader_epoch=4, in_sync=in_sync, replicas=(1, 2))
        self.disk.run()

    def register(self, broker_id: int, *, broker_epoch: int, secret: bytes | None = None) -> None:
        brokers = dict(self.controller.image.brokers)
        registered = replace(brokers[BrokerId(broker_id)], broker_epoch=broker_epoch)
        if secret is not None:
            registered = replace(registered, incarnation_id=id_of_secret(secret))
        brokers[BrokerId(broker_id)] = registered
        self.controller.image = replace(self.controller.image, brokers=brokers)

    def produce(self, *values: bytes) -> None:
        self.partition.append_as_leader(
            batch_of(*values), acks=1, produce_version=9, now_ms=self.clock.now_ms(), on_done=lambda _: None
        )
        self.node.end_turn()

    def fetch(
        self,
        offset: int,
        *,
        replica: int = 2,
        broker_epoch: int = 20,
        leader_epoch: int = 4,
        last_epoch: int = -1,
        high_watermark: int = 0,
        max_wait_ms: int = 0,
        version: int = 18,
        secret: bytes = NO_SECRET,
    ) -> Exchange:
        wanted = FetchPartition(
            partition=0,
            fetch_offset=offset,
            current_leader_epoch=leader_epoch,
            last_fetched_epoch=last_epoch,
            log_start_offset=0,
            partition_max_bytes=1 << 20,
            high_watermark=high_watermark,
        )
        request = FetchRequest(
            replica_id=replica,
            replica_state=ReplicaState(replica_id=replica, replica_epoch=broker_epoch),
            secret=secret,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            topics=(FetchTopic(topic="orders", topic_id=topic_id_of("orders"), partitions=(wanted,)),),
        )
        return self.node.send(request, version)


@pytest.fixture
def bench() -> FollowerReadersBench:
    return FollowerReadersBench()


def test_a_follower_gets_uncommitted_records_and_acknowledges_with_its_next_fetch(bench: FollowerReadersBench) -> None:
    bench.produce(b"a", b"b")
    bench.disk.run()
    answer = bench.fetch(0).fetched
    assert [record.value for record in records_of(answer.records)] == [b"a", b"b"]
    assert answer.high_watermark == 0
    answer = bench.fetch(2, last_epoch=4).fetched
    assert (answer.high_watermark, bench.partition.high_watermark) == (2, 2), "this answer has the new one already"


@pytest.mark.parametrize("version", [15, 18])
def test_versions_with_a_broker_epoch_count(bench: FollowerReadersBench, version: int) -> None:
    bench.produce(b"a")
    bench.disk.run()
    bench.fetch(1, version=version)
    assert bench.partition.high_watermark == 1


@pytest.mark.parametrize(
    "options",
    [
        {"version": 11},
        {"version": 14},
        {"version": 17, "broker_epoch": -1},
        {"version": 17, "leader_epoch": -1},
        {"version": 17, "leader_epoch": -1, "broker_epoch": -1},
        {"version": 17, "broker_epoch": 19},
        {"version": 17, "broker_epoch": 21},
    ],
    ids=str,
)
def test_a_fetch_in_the_name_of_a_replica_is_given_nothing_and_moves_nothing(
    bench: FollowerReadersBench, options: dict[str, Any]
) -> None:
    """Any client that reaches the port may claim to be broker 2, and knows the leader epoch from Metadata."""
    bench.produce(b"a")
    bench.disk.run()
    answers = [bench.fetch(offset, **options).fetched for offset in (0, 1)]
    assert [(data.error_code, data.records) for data in answers] == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")] * 2
    assert (bench.partition.high_watermark, bench.controller.commands) == (0, [])
    bench.fetch(1)
    assert bench.partition.high_watermark == 1, "as the replica itself does it"


SECRET = b"of broker 2's...."[:16]


def test_a_client_that_guesses_the_epoch_of_a_replica_moves_nothing(bench: FollowerReadersBench) -> None:
    """The epoch of a registration is a small number: the offset of its record in the metadata log."""
    bench.register(2, broker_epoch=20, secret=SECRET)
    bench.produce(b"a")
    bench.disk.run()
    guesses: list[dict[str, Any]] = [{"broker_epoch": epoch} for epoch in range(-1, 40)]
    guesses += [{"secret": bytes([number]) * 16} for number in range(256)]
    guesses += [{"secret": id_of_secret(SECRET)}, {"secret": SECRET, "broker_epoch": 19}, {"version": 14}]
    for guess in guesses:
        for offset in (0, 1):
            answer = bench.fetch(offset, **guess).fetched
            assert (answer.error_code, answer.records) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b""), guess
    assert (bench.partition.high_watermark, bench.controller.commands) == (0, [])
    bench.fetch(1, secret=SECRET)
    assert bench.partition.high_watermark == 1, "as the replica itself does it"


def test_a_new_start_of_a_replica_has_another_secret(bench: FollowerReadersBench) -> None:
    bench.register(2, broker_epoch=20, secret=SECRET)
    bench.produce(b"a")
    bench.disk.run()
    bench.fetch(0, secret=SECRET)
    bench.register(2, broker_epoch=25, secret=b"of another start")
    assert bench.fetch(1, broker_epoch=25, secret=SECRET).fetched.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert bench.partition.high_watermark == 0
    bench.fetch(1, broker_epoch=25, secret=b"of another start")
    assert bench.partition.high_watermark == 1


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"leader_epoch": 3}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 5}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"replica": 3, "broker_epoch": 30}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"replica": 3, "broker_epoch": 30, "leader_epoch": -1}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"broker_epoch": 19}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_a_fetch_that_is_not_of_a_current_follower_counts_for_nothing(
    bench: FollowerReadersBench, options: dict[str, Any], code: ErrorCode
) -> None:
    bench.produce(b"a")
    bench.disk.run()
    assert bench.fetch(1, **options).fetched.error_code == code
    assert bench.partition.high_watermark == 0


def test_a_fetch_from_before_a_later_one_of_a_new_registration_counts_for_nothing(bench: FollowerReadersBench) -> None:
    bench.produce(b"a")
    bench.disk.run()
    bench.register(2, broker_epoch=25)
    bench.fetch(0, broker_epoch=25)
    assert bench.fetch(1, broker_epoch=20).fetched.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert bench.partition.high_watermark == 0


def test_a_follower_whose_log_diverges_acknowledges_nothing(bench: FollowerReadersBench) -> None:
    bench.produce(b"a", b"b")
    bench.disk.run()
    answer = bench.fetch(2, last_epoch=2).fetched
    assert (answer.error_code, answer.records) == (0, b"")
    assert answer.diverging_epoch.end_offset == 0
    assert bench.partition.high_watermark == 0


def test_a_follower_beyond_the_log_end_gets_the_range(bench: FollowerReadersBench) -> None:
    bench.produce(b"a")
    answer = bench.fetch(7).fetched
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 0)
    assert bench.partition.high_watermark == 0


def test_a_follower_that_has_everything_waits_for_more(bench: FollowerReadersBench) -> None:
    fetch = bench.fetch(0, max_wait_ms=500)
    assert not fetch.is_answered
    bench.produce(b"a")
    bench.clock.advance(0)
    assert [record.value for record in records_of(fetch.fetched.records)] == [b"a"], "before it is flushed"


def test_a_fetch_that_waits_acknowledges_once(bench: FollowerReadersBench) -> None:
    bench.produce(b"a")
    bench.disk.run()
    waiting = bench.fetch(1, high_watermark=1, max_wait_ms=500)
    assert not waiting.is_answered
    bench.register(2, broker_epoch=21)
    bench.fetch(0, high_watermark=1, broker_epoch=21)  # it has started anew meanwhile, and has less
    bench.produce(b"b")
    bench.disk.run()
    bench.clock.advance(0)
    assert waiting.fetched.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "it is not read on for, either"
    assert bench.partition.high_watermark == 1


def test_a_follower_that_does_not_know_the_high_watermark_is_answered_at_once(bench: FollowerReadersBench) -> None:
    bench.produce(b"a")
    bench.disk.run()
    bench.fetch(1)
    assert bench.partition.high_watermark == 1
    behind = bench.fetch(1, high_watermark=0, max_wait_ms=500)
    assert behind.fetched.high_watermark == 1
    assert not bench.fetch(1, high_watermark=1, max_wait_ms=500).is_answered


def test_a_follower_that_waits_hears_when_the_high_watermark_rises(bench: FollowerReadersBench) -> None:
    bench.produce(b"a")
    fetch = bench.fetch(1, last_epoch=4, max_wait_ms=500)
    assert not fetch.is_answered
    bench.disk.run()
    bench.clock.advance(0)
    assert fetch.fetched.high_watermark == 1


def test_a_follower_that_waits_hears_when_the_leadership_goes(bench: FollowerReadersBench) -> None:
    fetch = bench.fetch(0, max_wait_ms=500)
    bench.node.create("orders", leader=2, leader_epoch=5, in_sync=(1, 2), replicas=(1, 2))
    bench.clock.advance(0)
    assert fetch.fetched.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_replica_that_has_caught_up_is_proposed_to_be_in_sync() -> None:
    bench = FollowerReadersBench(in_sync=(1,))
    bench.fetch(0)
    bench.clock.advance(0)
    (command,) = bench.controller.commands
    assert [member.broker_id for member in command.changes[0].in_sync_replicas] == [1, 2]


def test_a_fenced_broker_is_not_proposed() -> None:
    bench = FollowerReadersBench(in_sync=(1,), fenced=(2,))
    assert bench.fetch(0).fetched.error_code == ErrorCode.NONE
    bench.clock.advance(0)
    assert bench.controller.commands == []


class ThrottledBench(FollowerReadersBench):
    """Broker 3 is out of sync, and gets 1,000 bytes a second."""

    def __init__(self, *replicas: str) -> None:
        super().__init__(in_sync=(1, 2))
        state = replace(self.partition.state, replicas=(1, 2, 3))  # type: ignore[type-var]
        self.partition.become_leader(state)  # type: ignore[arg-type]
        topic_id = self.partition.topic_id
        topic = ConfigResource(ResourceType.TOPIC, "orders")
        image = replace(
            self.controller.image,
            topics={"orders": TopicImage(name="orders", topic_id=topic_id, partitions={})},
            configs={
                topic: {"leader.replication.throttled.replicas": ",".join(replicas)},
                ConfigResource(ResourceType.BROKER, "1"): {"leader.replication.throttled.rate": "1000"},
            },
        )
        self.throttles = self.node.broker.replicas.throttles
        self.throttles.load(image)
        self.produce(bytes(5_000))
        self.disk.run()

    def size_for(self, replica: int, *, offset: int = 0, max_wait_ms: int = 0) -> int:
        epochs = {2: 20, 3: 30}
        answer = self.fetch(
            offset, replica=replica, broker_epoch=epochs[replica], high_watermark=1, max_wait_ms=max_wait_ms
        )
        return len(answer.fetched.records or b"")


@pytest.mark.parametrize("replicas", [("0:1",), ("*",), ("0:2", "7:1", "0:1")], ids=str)
def test_a_replica_out_of_sync_gets_nothing_while_the_leaders_rate_is_exceeded(replicas: tuple[str, ...]) -> None:
    bench = ThrottledBench(*replicas)
    assert [bench.size_for(3) > 5_000, bench.size_for(3)] == [True, 0]
    bench.clock.advance(4_000)
    assert bench.size_for(3) == 0
    bench.clock.advance(2_000)
    assert bench.size_for(3) > 5_000


@pytest.mark.parametrize("replicas", [(), ("0:2", "0:3"), ("1:1",)], ids=str)
def test_replicas_that_are_not_in_the_list_of_this_leader_are_not_held_back(replicas: tuple[str, ...]) -> None:
    bench = ThrottledBench(*replicas)
    assert [bench.size_for(3) > 5_000 for _ in range(3)] == [True] * 3


def test_a_replica_in_sync_is_never_held_back_and_its_bytes_count() -> None:
    bench = ThrottledBench("*")
    assert [bench.size_for(2) > 5_000 for _ in range(3)] == [True] * 3
    assert bench.size_for(3) == 0


def test_a_fetch_that_is_held_back_waits() -> None:
    """The fetch would come again at once otherwise, and again."""
    bench = ThrottledBench("*")
    bench.size_for(3)
    bench.produce(b"more")
    bench.disk.run()
    waiting = bench.fetch(1, replica=3, broker_epoch=30, high_watermark=2, max_wait_ms=500)
    assert not waiting.is_answered
    bench.clock.advance(500)
    assert (waiting.fetched.error_code, waiting.fetched.records) == (0, b"")


def test_a_rate_and_a_list_that_are_taken_away_hold_back_nothing() -> None:
    bench = ThrottledBench("*")
    bench.size_for(3)
    bench.throttles.load(replace(bench.controller.image, configs={}))
    assert bench.size_for(3) > 5_000


def test_a_leader_vouches_to_followers_alone_and_only_with_records() -> None:
    bench = FollowerReadersBench()
    bench.produce(b"a")
    bench.disk.run()
    bench.node.end_turn()
    assert bench.fetch(0).fetched.checked_from == 0
    assert bench.fetch(1).fetched.checked_from == -1
    assert bench.fetch(0, replica=-1, broker_epoch=-1).fetched.checked_from == -1
