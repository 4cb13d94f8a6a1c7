"""Members that share partitions by key: the views that they choose, and what contradicts a choice."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tailrace.client.blocking import Admin, Consumer, Producer
from tailrace.client.group.described_groups import DescribedMember, GroupDescription
from tailrace.client.group.topic_views import MOST_SLOTS, Slot, contradiction, slot_of, usual_slots
from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.model.views import FAN_OUTS
from tailrace.protocol.messages.groups import GroupDetails, GroupEventDetails
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until
from unit.client.new_topics import new_topic

KEYS, RECORDS = 20, 100


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node whose groups send heartbeats often."""
    with Cluster(config={"group.consumer.heartbeat.interval.ms": "50"}) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """Records of twenty keys in one partition; the values of a key count up."""
    name = new_topic(cluster)
    _write(cluster, name, range(RECORDS))
    return name


def _write(cluster: Cluster, topic: str, numbers: range) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % (number // KEYS), key=b"key-%d" % (number % KEYS))


def _member(cluster: Cluster, topic: str, **settings: Any) -> Consumer:
    settings = {"auto_offset_reset": "earliest", "allow_individual_commit": True, "topics": [topic], **settings}
    return Consumer(cluster.bootstrap_servers, group=f"group-{topic}", **settings)


def _read(consumers: list[Consumer], count: int) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []

    def is_read() -> bool:
        for consumer in consumers:
            records.extend(consumer.poll(0.05))
        return len(records) >= count

    wait_until(is_read, f"{count} records")
    return records


def _refusal(consumer: Consumer) -> KafkaError:
    with pytest.raises(KafkaError) as caught, consumer:
        wait_until(lambda: bool(consumer.poll(0.05)), "a refusal")
    return caught.value


@pytest.mark.parametrize(("partitions", "slots"), [(1, 64), (8, 64), (9, 32), (16, 32), (17, 16), (256, 2), (5_000, 2)])
def test_a_topic_has_64_slots_a_partition_and_512_at_most(partitions: int, slots: int) -> None:
    assert usual_slots(partitions) == slots
    assert slots in FAN_OUTS
    assert partitions * slots <= max(MOST_SLOTS, partitions * 2)


def test_a_partition_of_a_view_is_a_slot_of_a_partition() -> None:
    assert slot_of(TopicPartition("orders.shared-16", 35)) == Slot("orders", 2, 3)
    assert slot_of(TopicPartition("orders", 2)) is None


def test_members_beyond_the_partitions_share_by_key_and_records_have_the_topics_own_place(
    cluster: Cluster, topic: str
) -> None:
    with _member(cluster, topic) as first, _member(cluster, topic) as second:
        records = _read([first], RECORDS)
        assert {(record.topic, record.partition) for record in records} == {(topic, 0)}
        assert sorted(record.offset for record in records) == list(range(RECORDS))

        def is_shared() -> bool:
            records.extend(first.poll(0.05) + second.poll(0.05))
            return len(first.assignment()) == len(second.assignment()) == 32

        wait_until(is_shared, "half of the slots each")
        _write(cluster, topic, range(RECORDS, 2 * RECORDS))
        again = [_read([consumer], 1) for consumer in (first, second)]
        keys = [{record.key for record in part} for part in again]
        assert not keys[0] & keys[1], "a key has one reader"
        records += again[0] + again[1]
        records += _read([first, second], 2 * RECORDS - len(records))
    of_key: dict[bytes | None, list[int]] = {}
    for record in records:
        of_key.setdefault(record.key, []).append(int(record.value or b""))
    assert of_key == {b"key-%d" % key: list(range(2 * RECORDS // KEYS)) for key in range(KEYS)}


def test_an_iteration_has_the_topics_own_place_and_commits_what_it_has_passed(cluster: Cluster, topic: str) -> None:
    with _member(cluster, topic, enable_auto_commit=False) as consumer:
        passed = []
        for record in consumer:
            passed.append((record.topic, record.partition, record.offset))
            if len(passed) == 10:
                consumer.commit()
                break
    with _member(cluster, topic) as consumer:
        rest = _read([consumer], RECORDS - 10)
    assert sorted(passed + [(r.topic, r.partition, r.offset) for r in rest]) == [(topic, 0, n) for n in range(RECORDS)]


def test_an_offset_of_the_topics_own_partition_is_not_committed(cluster: Cluster, topic: str) -> None:
    with _member(cluster, topic) as consumer:
        _read([consumer], RECORDS)
        with pytest.raises(KafkaError, match=r"commit\(\) covers all records that were returned"):
            consumer.commit({TopicPartition(topic, 0): 5})
        consumer.commit({min(consumer.assignment()): 5})


def test_a_group_with_progress_in_the_topic_itself_is_refused_with_the_command_that_moves_it(
    cluster: Cluster, topic: str
) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        admin.commit_offsets(f"group-{topic}", {TopicPartition(topic, 0): 5})
    fault = _refusal(_member(cluster, topic))
    assert fault.code is ErrorCode.INVALID_REQUEST
    assert f"tailrace groups move group-{topic} {topic} {topic}.shared-64" in fault.detail


def test_a_group_keeps_the_slots_in_which_it_has_progress(cluster: Cluster, topic: str) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        admin.commit_offsets(f"group-{topic}", {TopicPartition(f"{topic}.shared-8", 0): 0})
    with _member(cluster, topic) as consumer:
        _read([consumer], RECORDS)
        assert {name.topic for name in consumer.assignment()} == {f"{topic}.shared-8"}


def test_a_member_of_another_view_is_named(cluster: Cluster, topic: str) -> None:
    with Consumer(
        cluster.bootstrap_servers,
        group=f"group-{topic}",
        topics=[f"{topic}.shared-8"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        client_id="eight",
    ) as other:
        _read([other], RECORDS)
        fault = _refusal(_member(cluster, topic))
    assert fault.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert "member 'eight'" in fault.detail
    assert f"'{topic}.shared-8'" in fault.detail


def _described(members: Sequence[tuple[str, str]], joined: Sequence[str]) -> GroupDescription:
    """A group of these members with the topic to which each subscribes. Nothing is assigned yet."""
    events = tuple(
        GroupEventDetails(kind="join", member_id=name, reason="", first_ms_ago=0, last_ms_ago=0, count=1)
        for name in joined
    )
    return GroupDescription(
        group="g",
        state="Stable",
        protocol_type="consumer",
        assignor="uniform",
        coordinator_id=1,
        coordinator="127.0.0.1:1",
        members=tuple(
            DescribedMember(
                member_id=name,
                group_instance_id=None,
                client_id=name,
                host="127.0.0.1",
                assignment=(),
                topics=frozenset((topic,)),
            )
            for name, topic in members
        ),
        details=GroupDetails(now_ms=0, events=events, members=(), topics=()),
    )


@pytest.mark.parametrize(
    ("joined", "refused"),
    [
        (["eight", "sixty-four"], "sixty-four"),
        (["sixty-four", "eight"], "eight"),
        (["eight", "sixty-four", "eight"], "eight"),
    ],
    ids=["the later", "the other way", "a member that is back"],
)
def test_the_later_of_two_members_is_refused_and_the_earlier_is_not(joined: Sequence[str], refused: str) -> None:
    views = {"eight": "orders.shared-8", "sixty-four": "orders.shared-64"}
    group = _described([*views.items()], joined)
    found = {name: contradiction(group, (view,), name) for name, view in views.items()}
    assert [name for name, fault in found.items() if fault is not None] == [refused]
    (other,) = views.keys() - {refused}
    assert f"member '{other}' of group 'g' reads '{views[other]}'" in str(found[refused])


def test_a_member_whose_place_in_the_order_is_not_known_is_refused() -> None:
    """The coordinator has moved, and has forgotten the order."""
    group = _described([("eight", "orders.shared-8"), ("sixty-four", "orders.shared-64")], [])
    assert contradiction(group, ("orders.shared-8",), "eight") is not None
    assert contradiction(group, ("orders.shared-64",), "sixty-four") is not None


def test_a_member_is_later_than_members_whose_joins_are_forgotten() -> None:
    group = _described([("eight", "orders.shared-8"), ("sixty-four", "orders.shared-64")], ["sixty-four"])
    assert contradiction(group, ("orders.shared-64",), "sixty-four") is not None


def test_a_member_of_other_topics_is_not_in_the_way() -> None:
    group = _described([("eight", "payments.shared-8"), ("sixty-four", "orders.shared-64")], [])
    assert contradiction(group, ("orders.shared-64",), "sixty-four") is None


@pytest.mark.parametrize("name", ["{}.shared-8", "__consumer_offsets"])
def test_a_view_and_an_internal_topic_have_no_slots(cluster: Cluster, topic: str, name: str) -> None:
    assert _refusal(_member(cluster, name.format(topic))).code is ErrorCode.INVALID_REQUEST


def test_a_topic_that_forbids_key_ranges_is_named(cluster: Cluster) -> None:
    topic = new_topic(cluster, configs={"key.ranges.enable": "false"})
    assert "key.ranges.enable" in _refusal(_member(cluster, topic)).detail
