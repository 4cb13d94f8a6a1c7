import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tailrace.metadata.image import ImageDelta, TopicImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.model.topic_config import TopicConfig
from testkit.nodes.clocks import TickingClock
from unit.server.replicas.in_sync_bench import LAG_MS, TOPIC_ID, InSyncKeeperBench, proposing_bench, state


def test_all_in_sync_proposals_of_a_turn_are_one_command() -> None:
    bench = InSyncKeeperBench((1,), (1, 3), (1, 2, 3))
    for partition in bench.partitions:
        bench.fetch(partition, 2)
    assert bench.proposed == []
    bench.clock.advance(0)
    assert bench.proposed == [[(0, [1, 2]), (1, [1, 2, 3])]]
    ((command, _),) = bench.controller.waiting
    assert command.broker_epoch == 11
    members = command.changes[0].in_sync_replicas
    assert [(member.broker_id, member.broker_epoch) for member in members] == [(1, 11), (2, 12)]
    assert (command.changes[0].leader_epoch, command.changes[0].partition_epoch) == (4, 0)


def test_one_in_sync_command_is_under_way_at_a_time() -> None:
    bench = InSyncKeeperBench((1,), (1,))
    bench.propose(2)
    bench.fetch(bench.partitions[1], 2)
    bench.clock.advance(0)
    assert bench.proposed == [[(0, [1, 2])]]
    bench.answer(state((1, 2), partition_epoch=1))
    bench.clock.advance(0)
    assert bench.proposed == [[(1, [1, 2])]]
    assert bench.partitions[0].state == state((1, 2), partition_epoch=1)
    assert (bench.keeper.expansions, bench.keeper.shrinks) == (1, 0)


def test_a_replica_that_lags_for_too_long_is_proposed_to_leave() -> None:
    bench = InSyncKeeperBench((1, 2, 3))
    bench.node.produce("orders", b"a", acks=1)
    bench.clock.advance(LAG_MS)
    assert bench.proposed == []
    bench.fetch(bench.partition, 2, offset=1)
    bench.clock.advance(LAG_MS // 2)
    assert bench.proposed == [[(0, [1, 2])]]
    bench.answer(state((1, 2), partition_epoch=1))
    assert bench.keeper.shrinks == 1
    assert bench.partition.high_watermark == 0, "broker 3 counts until the image says that it has left"
    bench.node.table.update(TopicPartition("orders", 0), state((1, 2), partition_epoch=1), TopicConfig())
    assert bench.partition.high_watermark == 1


def test_an_in_sync_proposal_with_an_unknown_outcome_is_made_again() -> None:
    bench = proposing_bench()
    bench.answer(refusal=KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller answers"))
    assert bench.proposed == []
    bench.clock.advance(50)
    assert bench.proposed == [[(0, [1, 2])]]
    bench.answer(state((1, 2), partition_epoch=1))
    bench.clock.advance(50)
    assert bench.proposed == []


def test_an_in_sync_proposal_that_the_image_has_is_not_made_again() -> None:
    bench = proposing_bench()
    bench.answer(refusal=KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller answers"))
    bench.node.table.update(TopicPartition("orders", 0), state((1, 2), partition_epoch=1), TopicConfig())
    bench.clock.advance(50)
    assert bench.proposed == []


def test_a_refused_in_sync_proposal_leaves_other_partitions_alone() -> None:
    bench = InSyncKeeperBench((1,), (1,))
    for partition in bench.partitions:
        bench.fetch(partition, 2)
    bench.clock.advance(0)
    bench.answer(KafkaError(ErrorCode.INELIGIBLE_REPLICA), state((1, 2), partition_epoch=1))
    assert [partition.state == state((1, 2), partition_epoch=1) for partition in bench.partitions] == [False, True]
    bench.clock.advance(0)
    assert bench.proposed == [[(0, [1])]], "so that no late copy of the proposal can be carried out"
    bench.answer(state((1,), partition_epoch=1))
    bench.clock.advance(50)
    assert bench.proposed == []
    bench.propose(2)
    assert bench.proposed == [[(0, [1, 2])]]


def test_the_high_watermark_waits_for_a_refused_replica_for_one_more_answer_and_no_longer() -> None:
    bench = proposing_bench()
    bench.node.produce("orders", b"a", acks=1)
    bench.answer(KafkaError(ErrorCode.INELIGIBLE_REPLICA))
    bench.partition.in_sync.exclude([BrokerId(2)])
    assert bench.partition.high_watermark == 0, "a late copy of the proposal may still be carried out"
    bench.clock.advance(0)
    bench.answer(state((1,), partition_epoch=1))
    assert bench.partition.high_watermark == 1


@pytest.mark.parametrize("replicas", [(1, 2, 3), (1,)], ids=["with others", "alone"])
def test_a_leader_that_was_elected_without_being_complete_says_that_it_has_recovered(replicas: Sequence[int]) -> None:
    bench = InSyncKeeperBench((1,))
    recovering = state((1,), partition_epoch=1, is_recovering=True, replicas=replicas)
    bench.node.table.update(TopicPartition("orders", 0), recovering, TopicConfig())
    topic = TopicImage(name="orders", topic_id=TOPIC_ID, partitions={0: recovering})
    bench.keeper.load(replace(bench.controller.image, topics={"orders": topic}))
    bench.clock.advance(0)
    ((command, _),) = bench.controller.waiting
    assert not command.changes[0].is_recovering
    assert bench.proposed == [[(0, [1])]]


def test_no_high_watermark_waits_for_a_fenced_broker() -> None:
    bench = proposing_bench()
    bench.answer(KafkaError(ErrorCode.INELIGIBLE_REPLICA))
    bench.clock.advance(0)
    bench.answer(state((1,), partition_epoch=1))
    bench.node.produce("orders", b"a", acks=1)
    assert bench.partition.high_watermark == 0
    fenced = replace(bench.controller.image.brokers[BrokerId(2)], fenced=True)
    image = replace(bench.controller.image, brokers={BrokerId(2): fenced})
    bench.keeper.on_image(image, ImageDelta(changed_brokers=(BrokerId(2),)))
    assert bench.partition.high_watermark == 1


def test_the_in_sync_keeper_proposes_nothing_for_a_partition_that_is_gone() -> None:
    bench = InSyncKeeperBench((1,))
    bench.fetch(bench.partitions[0], 2)
    bench.node.table.delete("orders", 0)
    bench.clock.advance(0)
    assert bench.proposed == []


def test_a_stopped_in_sync_keeper_proposes_nothing() -> None:
    bench = InSyncKeeperBench((1,))
    bench.keeper.stop()
    bench.fetch(bench.partitions[0], 2)
    bench.clock.advance(10 * LAG_MS)
    assert bench.proposed == []


def test_the_in_sync_keeper_looks_at_a_few_lagging_partitions_in_a_turn_and_forgets_none() -> None:
    bench = InSyncKeeperBench(*[(1, 2, 3)] * 30, clock=TickingClock())
    bench.clock.advance(3 * LAG_MS)
    seen: list[int] = []
    while bench.controller.waiting:
        (command,) = bench.proposed
        assert len(command) <= 5
        seen += [number for number, _ in command]
        bench.answer(*(state((1,), partition_epoch=1) for _ in command))
        bench.clock.advance(LAG_MS // 4)
    assert sorted(seen) == list(range(30))


def test_many_partitions_learn_in_several_turns_that_a_broker_is_gone_unless_it_is_back() -> None:
    bench = InSyncKeeperBench(*[(1,)] * 30, clock=TickingClock())
    for partition in bench.partitions:
        bench.fetch(partition, 2)

    def waiting_for_2() -> int:
        return sum(partition.in_sync.leadership.replicas[BrokerId(2)].may_join for partition in bench.partitions)  # type: ignore[union-attr]

    there = bench.controller.image
    gone = replace(there, brokers={BrokerId(1): there.brokers[BrokerId(1)]})
    bench.keeper.on_image(gone, ImageDelta(changed_brokers=(BrokerId(2),)))
    assert 20 < waiting_for_2() < 30
    bench.clock.advance(200)
    assert waiting_for_2() == 0
    for partition in bench.partitions:
        bench.fetch(partition, 2)
    bench.keeper.on_image(gone, ImageDelta(changed_brokers=(BrokerId(2),)))
    bench.keeper.on_image(there, ImageDelta(changed_brokers=(BrokerId(2),)))
    bench.clock.advance(200)
    assert waiting_for_2() > 20


def test_the_in_sync_keepers_log_leaves_changes_to_the_controllers(caplog: pytest.LogCaptureFixture) -> None:
    """The controller's log names the state before, too; the leader could only log a count of answers."""
    caplog.set_level(logging.INFO, logger="tailrace.server")
    bench = proposing_bench()
    ((command, answer),) = bench.controller.waiting
    answer(KafkaError(ErrorCode.NOT_CONTROLLER, "moved"))
    assert command.changes
    assert not [record for record in caplog.records if record.name == "tailrace.server"]
