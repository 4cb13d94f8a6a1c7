"""A group moves from a topic to its view and back (KIP-X): real members do each record once.

Record by record, without a cluster: tests/properties/client/test_group_moves.py.
"""

import random
from collections import defaultdict
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tailrace import Admin, Consumer, Done, KafkaError, KeyedRecord, Outcome, Producer, Retry
from tailrace.client.keyed.keyed_consumer import AsyncKeyedConsumer
from tailrace.model.committed_progress import Rectangle
from tailrace.model.errors import ErrorCode
from tailrace.model.key_ranges import HASH_SPACE, hash_of, slot_of
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

PARTITIONS = 2


@pytest.fixture
def admin(tailrace_cluster: Cluster) -> Iterator[Admin]:
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def name(admin: Admin) -> str:
    name = f"moves-{uuid4()}"
    admin.create_topics({name: PARTITIONS})
    return name


def write(cluster: Cluster, topic: str, records: int, keys: int, counts: dict[bytes, int]) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for _ in range(records):
            key = b"%d" % random.randrange(keys)
            producer.send(topic, b"%d" % counts[key], key=key)
            counts[key] += 1


async def test_a_handlers_group_moves_to_a_view_to_another_and_back(
    tailrace_cluster: Cluster, name: str, admin: Admin
) -> None:
    """In each life a third of the keys is held: so the progress of each place has ranges when the group leaves it."""
    counts: dict[bytes, int] = defaultdict(int)
    done: dict[tuple[int, int], int] = defaultdict(int)
    in_order: dict[bytes, list[int]] = defaultdict(list)

    async def live(topic: str, most: int, *, held: int | None) -> None:
        fan_out = 1 if topic == name else int(topic.rpartition("-")[2])
        consumer = AsyncKeyedConsumer(tailrace_cluster.bootstrap_servers, group=name, topics=[topic])

        async def handle(record: KeyedRecord) -> Outcome:
            assert record.key is not None
            if held is not None and int(record.key) % 3 == held:
                return Retry()
            done[record.partition // fan_out, record.offset] += 1
            in_order[record.key].append(int(record.value))
            if len(done) == most:
                consumer.stop()
            return Done()

        await consumer.run(handle)

    places = [name, f"{name}.shared-64", f"{name}.shared-4", name, f"{name}.shared-8", name]
    for life, topic in enumerate(places):
        if life:
            ranged = any(found.ranges for found in admin.group_progress(name).values())
            assert ranged, "the group leaves more than offsets"
            planned = admin.move_group(name, places[life - 1], topic, dry_run=True)
            assert admin.move_group(name, places[life - 1], topic) == planned
            left = {partition.topic for partition in admin.group_offsets(name)}
            assert left == {topic}, "the group has no offsets in the topic that it leaves"
            after = admin.group_progress(name)
            assert {partition: found.stable_offset for partition, found in after.items()} == {
                partition: move.after for partition, move in planned.items()
            }
            assert {partition: found.ranges for partition, found in after.items()} == {
                partition: move.ranges for partition, move in planned.items()
            }
        is_last = life == len(places) - 1
        write(tailrace_cluster, name, 600, 300, counts)
        written = 600 * (life + 1)
        await live(topic, written if is_last else len(done) + 250, held=None if is_last else life % 3)
    assert [place for place, times in done.items() if times > 1] == []
    assert len(done) == sum(counts.values())
    assert dict(in_order) == {key: list(range(count)) for key, count in counts.items()}


def test_offsets_of_plain_members_move_to_each_slot_and_back(
    tailrace_cluster: Cluster, name: str, admin: Admin
) -> None:
    """A slot of a view ends behind its last record, and no offset is behind the end of its slot: no lag is negative."""
    view = f"{name}.shared-4"
    keys = [b"key-%d" % number for number in range(40)]
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for key in keys:
            producer.send(name, b"v", key=key, partition=0)
    with Consumer(tailrace_cluster.bootstrap_servers, group=name) as consumer:
        consumer.commit({TopicPartition(name, 0): 40})
    moves = admin.move_group(name, name, view)
    assert list(moves) == [TopicPartition(view, number) for number in range(4)], "partition 1 has no offset"
    slots = [slot_of(hash_of(key, 0)) // 64 for key in keys]
    ends = [1 + max(at for at, slot in enumerate(slots) if slot == number) for number in range(4)]
    assert [move.after for move in moves.values()] == ends
    assert admin.move_group(name, view, name) == {TopicPartition(name, 0): (None, 40, ())}


def test_a_slot_that_is_behind_holds_back_the_offset_of_its_partition(
    tailrace_cluster: Cluster, name: str, admin: Admin
) -> None:
    view, half = f"{name}.shared-2", HASH_SPACE // 2
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for number in range(40):
            producer.send(name, b"v", key=b"key-%d" % number, partition=1)
    with Consumer(tailrace_cluster.bootstrap_servers, group=name) as consumer:
        consumer.commit({TopicPartition(view, 2): 7, TopicPartition(view, 3): 40, TopicPartition(name, 1): 39})
    expected = {TopicPartition(name, 1): (39, 7, (Rectangle(7, 39, half, HASH_SPACE - 1),))}
    assert admin.move_group(name, view, name) == expected
    with Consumer(tailrace_cluster.bootstrap_servers, group=name) as consumer:
        consumer.commit({TopicPartition(view, 2): 9})
    found = admin.move_group(name, view, name)[TopicPartition(name, 1)]
    assert (found.after, found.ranges) == (0, (Rectangle(0, 8, 0, half - 1),)), "a slot without an offset did nothing"


def refusal(admin: Admin, group: str, source: str, target: str, *, dry_run: bool = False) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        admin.move_group(group, source, target, dry_run=dry_run)
    return caught.value


def test_a_move_between_names_that_are_no_topic_and_view_is_refused(name: str, admin: Admin) -> None:
    for source, target in (
        (name, name),
        (name, f"{name}.shared-3"),
        (name, f"{name}.shared-1"),
        (name, f"{name}.shared-512"),
        (name, f"{name}.shared-04"),
        (name, "another"),
        (name, "another.shared-4"),
        (f"{name}.shared-4", "another"),
        (f"{name}.shared-4", f"{name}.shared-4"),
    ):
        assert refusal(admin, "any", source, target).code is ErrorCode.INVALID_REQUEST, (source, target)


def test_a_move_of_what_does_not_exist_is_refused(tailrace_cluster: Cluster, name: str, admin: Admin) -> None:
    absent = refusal(admin, "any", f"no-{name}", f"no-{name}.shared-4")
    assert (absent.code, "does not exist" in absent.detail) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True)
    assert refusal(admin, f"no-{name}", name, f"{name}.shared-4").code is ErrorCode.GROUP_ID_NOT_FOUND
    with Consumer(tailrace_cluster.bootstrap_servers, group=name) as consumer:
        consumer.commit({TopicPartition(name, 0): 0})
    no_offset = refusal(admin, name, f"{name}.shared-4", name)
    assert (no_offset.code, "no committed offset in" in no_offset.detail) == (ErrorCode.GROUP_ID_NOT_FOUND, True)
    admin.alter_configs(2, name, {"key.ranges.enable": "false"})
    switched_off = refusal(admin, name, name, f"{name}.shared-4")
    assert switched_off.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "key.ranges.enable" in switched_off.detail


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_group_with_members_does_not_move(tailrace_cluster: Cluster, name: str, admin: Admin, dry_run: bool) -> None:
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        producer.send(name, b"v", key=b"k", partition=0)
    with Consumer(
        tailrace_cluster.bootstrap_servers, group=name, topics=[name], auto_offset_reset="earliest"
    ) as consumer:
        assert consumer.poll(timeout=10)
        consumer.commit()
        before = admin.group_offsets(name)
        refused = refusal(admin, name, name, f"{name}.shared-4", dry_run=dry_run)
        assert (refused.code, "has members" in refused.detail) == (ErrorCode.NON_EMPTY_GROUP, True)
        assert admin.group_offsets(name) == before
