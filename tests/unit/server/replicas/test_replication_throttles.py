"""The throttles follow the settings of brokers and topics in the image."""

from collections.abc import Mapping

import pytest

from tailrace.metadata.image import ALL_BROKERS, ClusterImage, ConfigResource, ImageDelta, ResourceType, TopicImage
from tailrace.model.ids import BrokerId, TopicId
from tailrace.node.settings.config import NodeConfig
from tailrace.replication.throttle import NO_LIMIT, ThrottleConfig
from tailrace.server.admin.config_entries import LiveSettings
from tailrace.server.replicas.replication_throttles import ReplicationThrottles
from tailrace.testing.clock import ManualClock

TOPIC = TopicId(b"the topic's id..")
ORDERS = ConfigResource(ResourceType.TOPIC, "orders")
BROKER_1 = ConfigResource(ResourceType.BROKER, "1")
BROKER_2 = ConfigResource(ResourceType.BROKER, "2")
LEADER_RATE, LEADERS = "leader.replication.throttled.rate", "leader.replication.throttled.replicas"
FOLLOWER_RATE, FOLLOWERS = "follower.replication.throttled.rate", "follower.replication.throttled.replicas"


def image(configs: Mapping[ConfigResource, Mapping[str, str]], topic_id: TopicId = TOPIC) -> ClusterImage:
    topic = TopicImage(name="orders", topic_id=topic_id, partitions={})
    return ClusterImage(topics={"orders": topic}, configs=configs)


class ThrottlesBench:
    """The throttles of broker 1."""

    def __init__(self, configs: Mapping[ConfigResource, Mapping[str, str]], **settings: str) -> None:
        config = NodeConfig({"node.id": "1", **settings})
        self.throttles = ReplicationThrottles(
            broker_id=BrokerId(1), settings=LiveSettings(config), config=ThrottleConfig(), clock=ManualClock()
        )
        self.throttles.load(image(configs))

    def change(self, configs: Mapping[ConfigResource, Mapping[str, str]], *changed: ConfigResource) -> None:
        self.throttles.on_image(image(configs), ImageDelta(changed_configs=changed))

    @property
    def rates(self) -> tuple[int, int]:
        return self.throttles.leader.quota.bytes_per_second, self.throttles.follower.quota.bytes_per_second

    @property
    def throttled(self) -> tuple[list[int], list[int]]:
        """The numbers below 5 of the partitions that are throttled at the leader's and at the follower's end."""
        leader, follower = self.throttles.leader, self.throttles.follower
        return (
            [number for number in range(5) if leader.is_throttled(TOPIC, number)],
            [number for number in range(5) if follower.is_throttled(TOPIC, number)],
        )


def test_without_settings_nothing_is_throttled() -> None:
    bench = ThrottlesBench({})
    assert (bench.rates, bench.throttled) == ((NO_LIMIT, NO_LIMIT), ([], []))


def test_the_rates_of_replication_throttles_are_this_brokers_before_those_of_all() -> None:
    bench = ThrottlesBench(
        {BROKER_1: {LEADER_RATE: "5"}, BROKER_2: {FOLLOWER_RATE: "6"}, ALL_BROKERS: {LEADER_RATE: "7"}}
    )
    assert bench.rates == (5, NO_LIMIT)
    bench.change({ALL_BROKERS: {LEADER_RATE: "7", FOLLOWER_RATE: "8"}}, BROKER_1, ALL_BROKERS)
    assert bench.rates == (7, 8)
    bench.change({}, ALL_BROKERS)
    assert bench.rates == (NO_LIMIT, NO_LIMIT)


def test_the_throttled_replicas_are_those_of_this_broker() -> None:
    bench = ThrottlesBench({ORDERS: {LEADERS: "0:1,1:2,3:1", FOLLOWERS: "2:1,0:2"}})
    assert bench.throttled == ([0, 3], [2])
    bench.change({ORDERS: {LEADERS: "*"}}, ORDERS)
    assert bench.throttled == ([0, 1, 2, 3, 4], [])
    bench.change({}, ORDERS)
    assert bench.throttled == ([], [])
    assert bench.throttles.leader.is_idle


def test_a_deleted_topic_is_throttled_no_more_and_its_successor_by_its_own_settings() -> None:
    bench = ThrottlesBench({ORDERS: {LEADERS: "*"}})
    (old,) = image({}).topics.values()
    again = TopicId(b"the topic's 2nd.")
    delta = ImageDelta(deleted_topics=(old,), changed_configs=(ORDERS,))
    bench.throttles.on_image(image({ORDERS: {FOLLOWERS: "*"}}, again), delta)
    assert bench.throttled == ([], [])
    assert bench.throttles.leader.is_idle
    assert bench.throttles.follower.is_throttled(again, 0)


@pytest.mark.parametrize("value", ["*,0:1", "zero", "0:1:2"])
def test_an_illegal_list_of_another_release_throttles_nothing(value: str) -> None:
    assert ThrottlesBench({ORDERS: {LEADERS: value}}).throttled == ([], [])
