"""Logs of replicas that differ from their leader's: where the replica fetchers cut them, or begin them anew."""

from typing import Any

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.fetch import DivergingEpoch, PartitionData
from tailrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tailrace.storage.checkpoints import RECOVERY_POINTS
from testkit.nodes.data_path import BROKER
from unit.server.replicas.fetchers_bench import ORDERS, OUT_OF_RANGE, ReplicaFetchersBench, batch, data, state

THREE_RECORDS = batch(0, b"a", epoch=1) + batch(1, b"b", epoch=2) + batch(2, b"c", epoch=2)


def test_a_replicas_log_that_diverges_is_cut_when_its_recovery_point_is_lowered() -> None:
    bench = ReplicaFetchersBench(state(2, 3))
    bench.take_answer(data(0, THREE_RECORDS))
    bench.write_recovery_points()
    bench.answer(data(0, diverging_epoch=DivergingEpoch(epoch=2, end_offset=2)))
    assert (bench.partition().log.log_end_offset, bench.fetches) == (3, [])
    bench.settle()
    assert bench.partition().log.log_end_offset == 2
    ((_, (wanted,)),) = bench.fetches
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (2, 2)


def committed(bench: ReplicaFetchersBench, *, leader: int, epoch: int) -> None:
    """Three records in epoch 1, all of them committed as far as this replica knows; then another leader."""
    bench.take_answer(
        data(0, batch(0, b"a", epoch=1) + batch(1, b"b", epoch=1) + batch(2, b"c", epoch=1), high_watermark=3)
    )
    assert bench.partition().high_watermark == 3
    bench.take(0, state(leader, epoch), forgets=True)


def test_committed_records_are_not_cut_for_a_leader_that_lost_them(caplog: pytest.LogCaptureFixture) -> None:
    bench = ReplicaFetchersBench(state(2, 1))
    committed(bench, leader=3, epoch=2)
    bench.take_answer(data(0, diverging_epoch=DivergingEpoch(epoch=1, end_offset=1)))
    log = bench.partition().log
    assert (log.log_end_offset, bench.partition().high_watermark) == (3, 3)
    assert (bench.fetches, bench.hosts.failed_partitions) == ([], 1)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    for part in (
        "event=replica-stopped partition=orders-0 leader=3 leader_epoch=2 ",
        "high_watermark=3 ",
        "cut_asked_at=1 ",
        "tailrace topics elect orders --partition 0 --unclean --force --replica 1",
    ):
        assert part in line
    bench.take(0, state(2, 3))
    ((leader, (wanted,)),) = bench.fetches
    assert (leader, wanted.fetch_offset, bench.hosts.failed_partitions) == (2, 3, 0), "another leader has it"


def test_records_lost_in_an_unclean_election_are_cut() -> None:
    bench = ReplicaFetchersBench(state(2, 1))
    committed(bench, leader=3, epoch=2)
    bench.take(0, state(3, 4, unclean_epoch=2), forgets=True)
    bench.take_answer(data(0, diverging_epoch=DivergingEpoch(epoch=1, end_offset=1)))
    assert (bench.partition().log.log_end_offset, bench.partition().high_watermark) == (1, 1)
    assert bench.hosts.failed_partitions == 0


def test_an_unclean_election_of_long_ago_has_lost_nothing_that_came_after_it() -> None:
    bench = ReplicaFetchersBench(state(2, 1, unclean_epoch=1))
    committed(bench, leader=3, epoch=2)
    bench.take(0, state(3, 4, unclean_epoch=1), forgets=True)
    bench.take_answer(data(0, diverging_epoch=DivergingEpoch(epoch=1, end_offset=1)))
    assert (bench.partition().log.log_end_offset, bench.hosts.failed_partitions) == (3, 1)


def test_an_idle_log_that_went_on_from_its_leaders_since_an_unclean_election_is_not_cut() -> None:
    """Nothing was written since, so the log alone does not tell that it belongs to the new history."""
    bench = ReplicaFetchersBench(state(2, 1))
    committed(bench, leader=3, epoch=2)
    bench.take(0, state(3, 3, unclean_epoch=3), forgets=True)
    bench.take_answer(data(0, high_watermark=3))
    bench.take(0, state(2, 4, unclean_epoch=3), forgets=True)
    bench.take_answer(data(0, diverging_epoch=DivergingEpoch(epoch=1, end_offset=1)))
    assert (bench.partition().log.log_end_offset, bench.hosts.failed_partitions) == (3, 1)


def test_a_log_that_lost_its_records_to_retention_may_begin_lower_only_after_an_unclean_election() -> None:
    bench = ReplicaFetchersBench(state(2, 3))
    bench.take_answer(data(0, error_code=OUT_OF_RANGE, log_start_offset=40, high_watermark=50))
    bench.take_answer(data(0, error_code=OUT_OF_RANGE, log_start_offset=8, high_watermark=30))
    assert (bench.partition().log.log_start_offset, bench.hosts.failed_partitions) == (40, 1)
    bench.take(0, state(2, 4, unclean_epoch=4))
    bench.take_answer(data(0, error_code=OUT_OF_RANGE, log_start_offset=8, high_watermark=30))
    assert (bench.partition().log.log_start_offset, bench.hosts.failed_partitions) == (8, 0)


def test_a_committed_record_with_an_epoch_that_never_began_is_damage() -> None:
    """The follower's own log has an epoch that no leader ever began, so the loss is not the leader's."""
    bench = ReplicaFetchersBench(state(2, 1))
    committed(bench, leader=3, epoch=2)
    log = bench.partition().log
    log.epochs.assign(536870916, 2)
    bench.take(0, state(2, 3), forgets=True)
    bench.take_answer(data(0, error_code=OUT_OF_RANGE, log_start_offset=0))
    assert (log.is_damaged, log.log_end_offset, bench.hosts.failed_partitions) == (True, 3, 1)


def test_a_cut_of_a_replicas_log_that_comes_too_late_is_not_made() -> None:
    bench = ReplicaFetchersBench(state(2, 3))
    bench.take_answer(data(0, batch(0, b"a", epoch=1) + batch(1, b"b", epoch=2)))
    bench.answer(data(0, diverging_epoch=DivergingEpoch(epoch=1, end_offset=1)))
    bench.take(0, state(1, 4))
    assert bench.partition().log.log_end_offset == 2
    assert bench.partition().following.recovery_point == 2


def test_a_replica_that_fell_behind_its_leaders_log_starts_anew() -> None:
    bench = ReplicaFetchersBench(state(2, 3))
    bench.take_answer(data(0, error_code=OUT_OF_RANGE, log_start_offset=40, high_watermark=50))
    log = bench.partition().log
    assert (log.log_start_offset, log.log_end_offset) == (40, 40)
    ((_, (wanted,)),) = bench.fetches
    assert wanted.fetch_offset == 40
    bench.take_answer(data(0, batch(40, b"a", epoch=3), high_watermark=41, log_start_offset=40))
    assert bench.partition().high_watermark == 41


def test_before_a_log_is_dropped_whole_its_recovery_point_is_taken_back() -> None:
    """A power cut may leave any part of the log, or nothing, and the log start of now may not be on the disk."""
    bench = ReplicaFetchersBench(state(2, 3))
    bench.take_answer(data(0, THREE_RECORDS))
    bench.take_answer(data(0, high_watermark=3, log_start_offset=2))
    bench.write_recovery_points()
    recovery_points = bench.node.table.directory.checkpoint(RECOVERY_POINTS)
    assert (bench.partition().log.log_start_offset, recovery_points.get(ORDERS)) == (2, 3)
    bench.take_answer(data(0, error_code=OUT_OF_RANGE, log_start_offset=40, high_watermark=50))
    assert (bench.partition().log.log_start_offset, recovery_points.get(ORDERS)) == (40, 0)


def test_a_log_that_starts_within_a_batch_takes_that_batch_whole() -> None:
    bench = ReplicaFetchersBench(state(2, 3))
    bench.take_answer(data(0, error_code=OUT_OF_RANGE, log_start_offset=41, high_watermark=44))
    bench.take_answer(data(0, batch(40, b"a", b"b", b"c", b"d", epoch=3), high_watermark=44, log_start_offset=41))
    partition = bench.partition()
    assert (partition.log.log_start_offset, partition.log.log_end_offset, partition.high_watermark) == (41, 44, 44)
    ((_, (wanted,)),) = bench.fetches
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (44, 3)


def list_offsets_of(bench: ReplicaFetchersBench) -> tuple[ListOffsetsRequest, Any]:
    """The one question for log starts that waits, taken away, and its `on_reply`."""
    (found,) = [entry for entry in bench.peer.waiting if isinstance(entry[1], ListOffsetsRequest)]
    bench.peer.waiting.remove(found)
    return found[1], found[2]


def without_log_start(number: int) -> PartitionData:
    """The refusal of a leader that does not name its log start."""
    return data(number, error_code=OUT_OF_RANGE, high_watermark=-1, log_start_offset=-1)


def starts(*found: tuple[int, int, int]) -> ListOffsetsResponse:
    """(partition, error, offset) of the topic."""
    partitions = tuple(
        ListOffsetsPartitionResponse(partition_index=number, error_code=code, offset=offset)
        for number, code, offset in found
    )
    return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="orders", partitions=partitions),))


def test_a_follower_asks_a_kafka_leader_for_its_log_start_and_begins_there() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    bench.answer(*(without_log_start(number) for number in (0, 1)))
    request, on_reply = list_offsets_of(bench)
    (topic,) = request.topics
    assert (request.replica_id, topic.name) == (BROKER, "orders")
    assert [
        (partition.partition_index, partition.current_leader_epoch, partition.timestamp)
        for partition in topic.partitions
    ] == [(0, 0, -4)]
    on_reply(starts((0, ErrorCode.NONE, 70), (1, ErrorCode.NONE, 80), (9, ErrorCode.NONE, 90)))
    bench.settle()
    request, on_reply = list_offsets_of(bench)
    assert [partition.partition_index for partition in request.topics[0].partitions] == [1], "behind the first question"
    on_reply(starts((1, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)))
    bench.settle()
    assert [bench.partition(number).log.log_end_offset for number in (0, 1)] == [70, 0]


def test_a_leader_that_does_not_tell_its_log_start_is_asked_again() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    for _ in range(3):
        bench.answer(without_log_start(0))
        _, on_reply = list_offsets_of(bench)
        on_reply(None)
        bench.clock.advance(1_000)
        bench.settle()
    assert bench.partition().log.log_end_offset == 0
