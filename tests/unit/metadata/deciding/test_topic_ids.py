"""New topics get no id of a view of another topic (decision 0057)."""

from itertools import count

from tailrace.metadata.broker_commands import RegisterBroker, UnfenceBroker
from tailrace.metadata.commands import ControllerCommand, TopicSpec
from tailrace.model.ids import METADATA_TOPIC_ID, ZERO_TOPIC_ID, BrokerId, TopicId
from tailrace.model.views import FAN_OUTS, folded_id
from testkit.quorum.controller_commands import create_topics
from testkit.quorum.controllers import controller_machine


def ids_of(first_id: int, topics: int) -> list[TopicId]:
    """The ids of so many topics, of a controller whose random numbers are one behind the other."""
    numbers = count(first_id)
    machine = controller_machine(random_bytes=lambda size: next(numbers).to_bytes(16, "big")[-size:])
    offset = 0
    commands: list[ControllerCommand] = [
        RegisterBroker(broker_id=BrokerId(1), incarnation_id=bytes(16), endpoints=()),
        UnfenceBroker(broker_id=BrokerId(1), broker_epoch=0),
        *(create_topics(*(TopicSpec(name=f"{turn}-{number}") for number in range(topics // 2))) for turn in range(2)),
    ]
    for command in commands:
        decision = machine.decide(command, 0, next_offset=offset)
        machine.apply_all(decision.records)
        offset += len(decision.records)
    return [topic.topic_id for topic in machine.image.topics.values()]


def test_no_topic_has_the_id_of_a_view_and_no_two_views_have_one_id() -> None:
    ids = ids_of(1 << 120, 20)
    assert len(ids) == 20
    all_ids = [*ids, *(folded_id(topic_id, fan_out) for topic_id in ids for fan_out in FAN_OUTS)]
    assert len(set(all_ids)) == len(all_ids)


def test_no_view_has_a_reserved_id() -> None:
    ids = ids_of(0, 2)
    all_ids = {*ids, *(folded_id(topic_id, fan_out) for topic_id in ids for fan_out in FAN_OUTS)}
    assert all_ids.isdisjoint((ZERO_TOPIC_ID, METADATA_TOPIC_ID))
