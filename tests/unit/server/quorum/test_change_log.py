"""The active controller's log lines about changes of the cluster: one each, and a count where there are many."""

import logging
from dataclasses import replace

import pytest

from simulation.quorum.cluster import QuorumCluster, QuorumPlan
from simulation.quorum.plan import BROKERS
from tailrace.metadata.broker_commands import FenceSilentBroker
from tailrace.metadata.image import (
    BrokerImage,
    ChangedPartition,
    ClusterImage,
    ConfigResource,
    ImageDelta,
    ResourceType,
    TopicImage,
)
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from tailrace.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from tailrace.server.bounded_lines import LINES, WINDOW_MS
from tailrace.server.quorum.change_log import Cause, ChangeLog
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath

TOPIC_ID = TopicId(b"the-id-of-orders")
NOBODY = Cause(None)


def broker(number: int, *, epoch: int = 1, fenced: bool = False, is_going: bool = False) -> BrokerImage:
    return BrokerImage(
        broker_id=BrokerId(number),
        incarnation_id=bytes(16),
        broker_epoch=epoch,
        endpoints=(),
        fenced=fenced,
        in_controlled_shutdown=is_going,
    )


def state(*replicas: int, isr: tuple[int, ...], leader: int, epoch: int = 1) -> PartitionState:
    return PartitionState(
        topic_id=TOPIC_ID,
        replicas=tuple(map(BrokerId, replicas)),
        in_sync_replicas=tuple(map(BrokerId, isr)),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=epoch,
    )


def image(partitions: dict[int, PartitionState], *brokers: BrokerImage) -> ClusterImage:
    topic = TopicImage(name="orders", topic_id=TOPIC_ID, partitions=partitions)
    return ClusterImage(topics={"orders": topic}, brokers={each.broker_id: each for each in brokers})


def between(before: ClusterImage, after: ClusterImage) -> ImageDelta:
    old = before.topics["orders"].partitions
    return ImageDelta(
        changed_partitions=tuple(
            ChangedPartition(TopicPartition("orders", number), each)
            for number, each in after.topics["orders"].partitions.items()
            if old.get(number) != each
        ),
        changed_brokers=tuple(sorted(each for each in {*before.brokers, *after.brokers})),
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> ChangeLog:
    caplog.set_level(logging.INFO, logger="tailrace.server")
    return ChangeLog(clock)


def tell(log: ChangeLog, before: ClusterImage, after: ClusterImage, cause: Cause = NOBODY) -> None:
    for _ in log.steps(before, after, between(before, after), cause):
        pass


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tailrace.server"]


def test_a_fenced_broker_is_named_with_the_reason_and_what_it_led(
    log: ChangeLog, caplog: pytest.LogCaptureFixture
) -> None:
    before = image(
        {
            0: state(2, 3, 1, isr=(2, 3, 1), leader=2),
            1: state(3, 1, 2, isr=(3, 1, 2), leader=3),
            2: state(2, isr=(2,), leader=2),
        },
        broker(1),
        broker(2),
        broker(3),
    )
    after = image(
        {
            0: state(2, 3, 1, isr=(3, 1), leader=3, epoch=2),
            1: state(3, 1, 2, isr=(3, 1), leader=3, epoch=1),
            2: state(2, isr=(2,), leader=-1, epoch=2),
        },
        broker(1),
        broker(2, fenced=True),
        broker(3),
    )
    tell(log, before, after, Cause(FenceSilentBroker(), silent_ms=2_500))
    assert lines(caplog) == [
        "event=broker-fenced broker=2 reason='no heartbeat for 2500 ms' partitions=3 leaders-moved=1 offline=1",
        "event=leader-changed partition=orders-0 leader=3 was=2 leader-epoch=2",
        "event=isr-changed partition=orders-0 isr=3,1 was=2,3,1 leader=3",
        "event=isr-changed partition=orders-1 isr=3,1 was=3,1,2 leader=3",
        "event=leader-changed partition=orders-2 leader=none was=2 leader-epoch=2",
    ]
    caplog.clear()
    tell(log, after, before)
    assert lines(caplog)[0] == "event=broker-unfenced broker=2 partitions=3 leads=2"


@pytest.mark.parametrize(
    ("was", "now", "line"),
    [
        (broker(2, is_going=True), broker(2, fenced=True), "event=broker-fenced broker=2 reason='controlled shutdown'"),
        (broker(2), broker(2, epoch=9, fenced=True), "event=broker-fenced broker=2 reason='registered anew'"),
        (broker(2), broker(2, is_going=True), "event=broker-shutting-down broker=2"),
        (broker(2, fenced=True), broker(2), "event=broker-unfenced broker=2"),
        (None, broker(2), "event=broker-unfenced broker=2"),
        (broker(2, fenced=True), None, "event=broker-unregistered broker=2"),
        (None, broker(2, fenced=True), None),
        (broker(2), broker(2, epoch=2), None),
    ],
    ids=str,
)
def test_each_change_of_a_broker_is_one_line_of_the_change_log(
    log: ChangeLog, caplog: pytest.LogCaptureFixture, was: BrokerImage | None, now: BrokerImage | None, line: str | None
) -> None:
    def with_it(other_broker: BrokerImage | None) -> ClusterImage:
        return image({}, *(() if other_broker is None else (other_broker,)))

    tell(log, with_it(was), with_it(now))
    assert [each.startswith(line or "?") for each in lines(caplog)] == ([] if line is None else [True])


def test_a_thousand_partitions_do_not_write_a_thousand_lines(
    log: ChangeLog, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def cluster(leader: int, isr: tuple[int, ...], *, fenced: bool) -> ClusterImage:
        partitions = {number: state(2, 1, isr=isr, leader=leader, epoch=leader) for number in range(1_000)}
        return image(partitions, broker(1), broker(2, fenced=fenced))

    tell(log, cluster(2, (2, 1), fenced=False), cluster(1, (1,), fenced=True))
    clock.advance(WINDOW_MS)
    logged = lines(caplog)
    assert len(logged) == 1 + 2 * (LINES + 1)
    assert "partitions=1000 leaders-moved=1000 offline=0" in logged[0]
    assert logged[-2:] == ["event=leader-changed more=990", "event=isr-changed more=990"]
    caplog.clear()
    tell(log, cluster(2, (2, 1), fenced=False), cluster(2, (2,), fenced=False))
    assert len(lines(caplog)) == LINES, "the next window has its own lines"


def test_a_reassignment_names_the_replicas(log: ChangeLog, caplog: pytest.LogCaptureFixture) -> None:
    before = image({0: state(1, 2, 3, isr=(1, 2), leader=1)})
    tell(log, before, image({0: state(1, 2, isr=(1, 2), leader=1)}))
    assert lines(caplog) == ["event=replicas-changed partition=orders-0 replicas=1,2 was=1,2,3"]


def test_topic_settings_are_logged_with_values_and_broker_settings_without(
    log: ChangeLog, caplog: pytest.LogCaptureFixture
) -> None:
    topic = ConfigResource(ResourceType.TOPIC, "orders")
    node = ConfigResource(ResourceType.BROKER, "1")
    before = replace(image({}), configs={topic: {"retention.ms": "5"}})
    after = replace(image({}), configs={topic: {"segment.ms": "7"}, node: {"a.password": "secret"}})
    for _ in log.steps(before, after, ImageDelta(changed_configs=(topic, node)), NOBODY):
        pass
    assert lines(caplog) == [
        "event=topic-altered topic=orders settings='retention.ms=default (was 5); segment.ms=7 (was default)'",
        "event=config-altered type=broker name='1' settings=a.password",
    ]


# on the path of a request


def test_changes_of_a_topic_are_logged_with_the_client(caplog: pytest.LogCaptureFixture) -> None:
    node = AdminPath("/data", files=SimulatedDisk())
    caplog.set_level(logging.INFO, logger="tailrace.server")
    new = CreatableTopic(name="orders", num_partitions=2, replication_factor=1, assignments=(), configs=())
    node.send(CreateTopicsRequest(topics=(new,), timeout_ms=1_000), 7)
    more = CreatePartitionsTopic(name="orders", count=4, assignments=None)
    node.send(CreatePartitionsRequest(topics=(more,), timeout_ms=1_000, validate_only=False), 3)
    setting = IncrementallyAlterableConfig(name="retention.ms", config_operation=0, value="7000")
    resource = IncrementalAlterConfigsResource(resource_type=2, resource_name="orders", configs=(setting,))
    node.send(IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False), 1)
    node.send(DeleteTopicsRequest(topic_names=("orders",), timeout_ms=1_000), 5)
    logged = [line for line in lines(caplog) if "event=topic-" in line]
    assert [line.partition(" by=")[0] for line in logged] == [
        "event=topic-created topic=orders partitions=2 replication-factor=1",
        "event=topic-altered topic=orders partitions=4 was=2",
        "event=topic-altered topic=orders settings='retention.ms=7000 (was default)'",
        "event=topic-deleted topic=orders partitions=4",
    ]
    assert all(" by='" in line for line in logged)


def test_the_name_of_a_client_stays_one_word_of_the_line(caplog: pytest.LogCaptureFixture) -> None:
    node = AdminPath("/data", files=SimulatedDisk())
    caplog.set_level(logging.INFO, logger="tailrace.server")
    new = CreatableTopic(name="orders", num_partitions=2, replication_factor=1, assignments=(), configs=())
    name = "evil\nevent=forged" + "\0" * 10_000
    node.send(CreateTopicsRequest(topics=(new,), timeout_ms=1_000), 7, client_id=name)
    (line,) = (line for line in lines(caplog) if "event=topic-created" in line)
    assert "\n" not in line
    assert len(line) < 500


def test_refused_and_tried_decisions_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    node = AdminPath("/data", files=SimulatedDisk())
    caplog.set_level(logging.INFO, logger="tailrace.server")
    tried = CreatableTopic(name="orders", num_partitions=2, replication_factor=1, assignments=(), configs=())
    node.send(CreateTopicsRequest(topics=(tried,), timeout_ms=1_000, validate_only=True), 7)
    refused = CreatableTopic(name="orders", num_partitions=2, replication_factor=9, assignments=(), configs=())
    node.send(CreateTopicsRequest(topics=(refused,), timeout_ms=1_000), 7)
    assert lines(caplog) == []


def test_the_active_controller_alone_tells_that_it_has_fenced_a_silent_broker(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tailrace.server")
    cluster = QuorumCluster(1, QuorumPlan(commands_per_s=0, silences_per_s=0, chaos_ms=2_000))
    cluster.run()
    caplog.clear()
    node = cluster.leader()
    assert node is not None
    cluster._silent.update(BROKERS)
    cluster.world.run(
        until_ms=cluster.world.now_ms + 60_000,
        stop=lambda: all(each.fenced for each in node.controller.image.brokers.values()),
    )
    logged = [line for line in lines(caplog) if "event=broker-fenced" in line]
    assert len(logged) == len(node.controller.image.brokers)
    assert all("reason='no heartbeat for " in line for line in logged), logged
