"""The partitions that get another owner, in the history of a group."""

from tailrace.coordinators.groups.history import GroupEventKind
from tailrace.coordinators.groups.moves import MOST_BYTES, MOST_MOVES, moves_in_words, moves_of_classic
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerTopicPartitions,
)
from tailrace.protocol.schema import encode_prefixed
from testkit.coordinators.group_coordinator import GroupScene


def orders(*numbers: int, topic: str = "orders") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


def encoded(*numbers: int) -> bytes:
    topic = ConsumerTopicPartitions(topic="orders", partitions=numbers)
    return encode_prefixed(ConsumerProtocolAssignment(assigned_partitions=(topic,) if numbers else ()), 0)


def test_moves_name_the_new_owner_and_the_former_owner() -> None:
    before = {"a": orders(0, 1, 2, 3, 7), "b": orders(4)}
    after = {"a": orders(0), "b": orders(1, 2, 3, 4, 7), "c": orders(5) + orders(0, topic="bills")}
    assert moves_in_words(before, after) == "; b gets orders 1-3,7 of a; c gets bills 0, orders 5"
    assert moves_in_words(after, after) == ""


def test_the_words_have_a_bound() -> None:
    after = {f"member-{number:03}": orders(number) for number in range(MOST_MOVES + 3)}
    words = moves_in_words({}, after)
    assert words.count("gets") == MOST_MOVES
    assert words.endswith("; and 3 more")


def test_assignments_of_a_classic_group_are_read_where_they_can_be() -> None:
    before, after = {"a": encoded(0, 1), "b": b""}, {"a": encoded(0), "b": encoded(1)}
    assert moves_of_classic(PROTOCOL_TYPE, before, after) == "; b gets orders 1 of a"
    assert moves_of_classic("connect", before, after) == ""
    assert moves_of_classic(PROTOCOL_TYPE, before, {"a": encoded(0), "b": b"\0\0\xff\xff\xff"}) == ""
    assert moves_of_classic(PROTOCOL_TYPE, before, {"b": encoded(1) + bytes(MOST_BYTES)}) == ""


def test_a_classic_group_tells_the_moves_of_each_generation() -> None:
    scene = GroupScene()
    (a, b), generation_id = scene.form_group("a", "b")
    reasons: list[str] = []
    of_no_form, first, second = {a: b"", b: b""}, {a: encoded(0, 1), b: encoded(2)}, {a: encoded(0), b: encoded(1, 2)}
    for assignments in (of_no_form, first, second):
        for member in (a, b):
            scene.join(member, protocols={"range": b"anew-%d" % len(reasons)})
        generation_id += 1
        for member in (a, b):
            scene.sync(member, generation_id, assignments if member == a else {})
        events = scene.coordinator.reports.insight("g", now_ms=scene.now_ms, wall_ms=scene.wall_ms).events
        reasons.append([event.reason for event in events if event.kind is GroupEventKind.ASSIGNED][-1])
    assert reasons == [
        f"generation {generation_id - 2}",
        f"generation {generation_id - 1}; {a} gets orders 0-1; {b} gets orders 2",
        f"generation {generation_id}; {b} gets orders 1 of {a}",
    ]
