"""Range and round robin, as Kafka's own assignors deal partitions out."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.group.assignors import ASSIGNORS, assign_range, assign_round_robin
from tailrace.client.group.classic_member import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tailrace.model.partitions import TopicPartition

_TOPICS = ("a", "b", "c")


def _partitions(topic: str, *indexes: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in indexes]


def test_range_gives_each_member_a_stretch_of_every_topic() -> None:
    assigned = assign_range({"m2": ["a", "b"], "m1": ["a", "b"]}, {"a": 3, "b": 2})
    assert assigned == {
        "m1": _partitions("a", 0, 1) + _partitions("b", 0),
        "m2": _partitions("a", 2) + _partitions("b", 1),
    }


def test_round_robin_deals_all_partitions_one_by_one() -> None:
    assigned = assign_round_robin({"m1": ["a", "b"], "m2": ["a", "b"]}, {"a": 3, "b": 2})
    assert assigned == {
        "m1": _partitions("a", 0, 2) + _partitions("b", 1),
        "m2": _partitions("a", 1) + _partitions("b", 0),
    }


def test_round_robin_skips_members_that_do_not_want_a_topic() -> None:
    assigned = assign_round_robin({"m1": ["a"], "m2": ["a", "b"]}, {"a": 1, "b": 2})
    assert assigned == {"m1": _partitions("a", 0), "m2": _partitions("b", 0, 1)}


@given(
    subscriptions=st.dictionaries(
        st.text("mn123", min_size=1, max_size=3), st.lists(st.sampled_from(_TOPICS)), max_size=5
    ),
    counts=st.dictionaries(st.sampled_from(_TOPICS), st.integers(0, 7)),
    name=st.sampled_from(sorted(ASSIGNORS)),
)
def test_every_wanted_partition_has_exactly_one_owner_that_wants_it(
    subscriptions: dict[str, list[str]], counts: dict[str, int], name: str
) -> None:
    assigned = ASSIGNORS[name](subscriptions, counts)
    assert assigned.keys() == subscriptions.keys()
    dealt = sorted(partition for partitions in assigned.values() for partition in partitions)
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert dealt == [TopicPartition(topic, i) for topic in sorted(wanted & counts.keys()) for i in range(counts[topic])]
    assert all(p.topic in subscriptions[member] for member, partitions in assigned.items() for p in partitions)


@given(topics=st.sets(st.text(max_size=5)), indexes=st.sets(st.integers(0, 100)))
def test_subscriptions_and_assignments_come_back_from_their_bytes(topics: set[str], indexes: set[int]) -> None:
    assert decode_subscription(encode_subscription(topics)) == tuple(sorted(topics))
    partitions = tuple(TopicPartition("t", index) for index in sorted(indexes))
    assert decode_assignment(encode_assignment(partitions)) == partitions


def test_a_newer_version_of_a_subscription_is_read_as_far_as_it_is_known() -> None:
    newer = b"\x00\x09" + encode_subscription(["orders"])[2:] + b"\xff\xff\xff\xff" + b"\xff\xff" + b"something new"
    assert decode_subscription(newer) == ("orders",)
