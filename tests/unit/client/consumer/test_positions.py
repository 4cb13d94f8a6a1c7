"""A consumer whose partition gets another leader, or whose offset a follower refuses (KIP-320, KIP-392).

The two nodes are scripted.
"""

import logging

import pytest

from tailrace.client.errors import LogTruncation
from tailrace.client.group.committed_offsets import OffsetAndMetadata
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.fetch import FetchRequest
from tailrace.protocol.messages.list_offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest
from testkit.clients.scripted_consumer import ORDERS, ConsumerBench, consumer_bench

MINUTE_MS = 60_000


# a change of leader (KIP-320)


async def test_a_position_is_compared_with_the_new_leader_before_the_next_fetch() -> None:
    async with consumer_bench() as bench:
        assert await bench.read(4) == [0, 1, 2, 3]
        assert not bench.nodes.requests(OffsetForLeaderEpochRequest)
        bench.elect(2, 7)
        bench.replicas[2].epochs.append(7)
        assert await bench.read(1) == [4]
        (asked,) = bench.nodes.requests(OffsetForLeaderEpochRequest)
        (partition,) = asked.topics[0].partitions
        assert (partition.leader_epoch, partition.current_leader_epoch) == (0, 7)
        assert asked.replica_id == -1
        of_node_2 = [request for node, request in bench.nodes.asked if node == 2]
        assert of_node_2[0] is asked


async def test_a_consumer_with_a_reset_policy_goes_on_after_a_truncation_where_the_logs_diverge(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="tailrace.client")

    async with consumer_bench(auto_offset_reset="latest") as bench:
        await bench.read(4)
        bench.replicas[2].epochs = [0, 0, 7, 7, 7, 7]
        bench.elect(2, 7)
        assert await bench.read(4) == [2, 3, 4, 5]
        assert not bench.nodes.requests(ListOffsetsRequest)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "tailrace.client"]
    assert line == (
        "consumer tailrace-consumer: offset 4 of orders-0 was truncated after it was read (epoch 0): "
        "records from 2 on are lost; goes on at 2"
    )


async def test_a_truncation_without_a_reset_policy_is_an_error_of_each_poll_until_a_seek() -> None:
    async with consumer_bench() as bench:
        await bench.read(4)
        bench.replicas[2].epochs = [0, 0, 7]
        bench.elect(2, 7)
        for _ in range(2):
            with pytest.raises(LogTruncation, match=r"orders-0: .* from offset 2 on .* offset 4 \(epoch 0\)") as caught:
                await bench.read(1)
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
            assert (caught.value.offset, caught.value.epoch, caught.value.diverging_offset) == (4, 0, 2)
        await bench.consumer.seek(ORDERS, 2)
        assert await bench.read(1) == [2]


async def test_a_consumer_that_validates_a_position_asks_a_leader_that_has_no_answer_yet_again() -> None:
    async with consumer_bench() as bench:
        await bench.read(4)
        bench.replicas[2].epochs.append(7)
        bench.replicas[2].end_faults = [ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
        before = bench.nodes.metadata_requests
        bench.elect(2, 7)
        assert await bench.read(1) == [4]
        assert len(bench.nodes.requests(OffsetForLeaderEpochRequest)) == 3
        assert bench.nodes.metadata_requests > before


async def test_a_consumer_raises_a_fault_of_the_validation_of_a_position_that_no_retry_cures() -> None:
    async with consumer_bench() as bench:
        await bench.read(4)
        bench.replicas[2].end_faults = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        bench.elect(2, 7)
        with pytest.raises(KafkaError) as caught:
            await bench.read(1)
        assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_a_consumer_does_not_validate_a_position_with_a_leader_without_the_request() -> None:
    async with consumer_bench() as bench:
        bench.nodes.newest = {23: 1}
        await bench.read(4)
        bench.replicas[2].epochs.append(7)
        bench.elect(2, 7)
        assert await bench.read(1) == [4]
        assert not bench.nodes.requests(OffsetForLeaderEpochRequest)


async def test_a_consumer_does_not_believe_metadata_older_than_the_records_that_it_has_read_at_once() -> None:
    """The metadata may name a leader that was deposed and does not know: that leader was never sent the records."""
    async with consumer_bench() as bench:
        bench.nodes.epochs[ORDERS] = 3
        bench.nodes.describe()
        bench.replicas[1].epochs = [0, 0]
        bench.replicas[2].epochs = [0, 0, 7, 7, 7]
        await bench.consumer.seek(ORDERS, OffsetAndMetadata(4, 7))
        await bench.until(lambda: bench.nodes.metadata_requests > 0)
        assert not bench.nodes.requests(OffsetForLeaderEpochRequest)
        bench.nodes.leaders[ORDERS], bench.nodes.epochs[ORDERS] = 2, 7
        assert await bench.read(1) == [4]


async def test_a_topic_that_was_created_again_is_read_by_the_reset_policy() -> None:
    """The topic's epochs begin anew, so all metadata have a lower epoch than the position."""
    async with consumer_bench(auto_offset_reset="earliest") as bench:
        await bench.consumer.seek(ORDERS, OffsetAndMetadata(3, 7))
        bench.replicas[1].epochs = [9, 9]
        bench.nodes.epochs[ORDERS] = 0
        assert await bench.read(2) == [0, 1]


# an offset out of range, and the closest replica (KIP-392)


async def _follow(bench: ConsumerBench) -> None:
    """The consumer has read four records, and reads from the follower now."""
    bench.replicas[1].preferred = 2
    assert await bench.read(4) == [0, 1, 2, 3]
    await bench.until(lambda: bench.fetched_offsets(2)[-1:] == [4])


async def test_a_consumer_at_an_offset_that_the_follower_has_lost_starts_at_the_log_start_of_that_follower() -> None:
    async with consumer_bench(auto_offset_reset="earliest", client_rack="a") as bench:
        await _follow(bench)
        follower = bench.replicas[2]
        follower.epochs, follower.log_start = [0] * 9, 7
        bench.replicas[1].epochs = [0] * 9
        assert await bench.read(2) == [7, 8]
        (asked,) = bench.nodes.requests(ListOffsetsRequest, 2)
        assert (asked.replica_id, asked.topics[0].partitions[0].timestamp) == (-2, -2)
        assert [r.topics[0].partitions[0].timestamp for r in bench.nodes.requests(ListOffsetsRequest, 1)] == [-1]


async def test_a_consumer_at_an_offset_that_the_follower_has_lost_starts_at_the_end_of_the_leader_with_latest() -> None:
    async with consumer_bench(auto_offset_reset="latest", client_rack="a") as bench:
        await _follow(bench)
        bench.replicas[2].epochs, bench.replicas[2].log_start = [0] * 9, 7
        bench.replicas[1].epochs = [0] * 9
        await bench.until(lambda: bench.consumer.position(ORDERS) == 9)
        asked = bench.nodes.requests(ListOffsetsRequest, 1)[0]
        assert (asked.replica_id, asked.topics[0].partitions[0].timestamp) == (-1, -1)


async def test_a_consumer_at_an_offset_that_the_follower_has_lost_gets_an_error_without_a_reset_policy() -> None:
    async with consumer_bench(client_rack="a") as bench:
        await _follow(bench)
        bench.replicas[2].epochs, bench.replicas[2].log_start = [0] * 9, 7
        with pytest.raises(KafkaError, match=r"auto\.offset\.reset is none") as caught:
            await bench.read(1)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert not bench.nodes.requests(OffsetForLeaderEpochRequest)


@pytest.mark.parametrize("reset", ["latest", "earliest", "none"])
async def test_an_offset_above_the_end_of_a_follower_is_confirmed_by_the_leader_and_read_there(reset: str) -> None:
    async with consumer_bench(auto_offset_reset=reset, client_rack="a") as bench:
        await _follow(bench)
        bench.replicas[2].epochs = [0, 0]
        bench.replicas[1].epochs = [0] * 5
        before = bench.nodes.metadata_requests
        assert await bench.read(1) == [4]
        assert len(bench.nodes.requests(OffsetForLeaderEpochRequest, 1)) == 1
        assert not bench.nodes.requests(ListOffsetsRequest)
        assert bench.nodes.metadata_requests > before


async def test_an_offset_above_the_end_of_a_follower_that_the_leader_lacks_too_is_a_truncation() -> None:
    async with consumer_bench(client_rack="a") as bench:
        await _follow(bench)
        bench.replicas[1].epochs = bench.replicas[2].epochs = [0, 0]
        with pytest.raises(LogTruncation):
            await bench.read(1)


@pytest.mark.parametrize("reset", ["latest", "earliest", "none"])
async def test_a_follower_that_gives_no_bounds_leaves_the_word_to_the_leader(reset: str) -> None:
    """As Apache Kafka's brokers do: Java's client fetches the same offset from the leader."""
    async with consumer_bench(auto_offset_reset=reset, client_rack="a") as bench:
        await _follow(bench)
        bench.replicas[2].gives_bounds = False
        bench.replicas[2].epochs = [0, 0]
        bench.replicas[1].epochs = [0] * 5
        assert await bench.read(1) == [4]
        assert not bench.nodes.requests(ListOffsetsRequest)
        assert not bench.nodes.requests(OffsetForLeaderEpochRequest)


async def test_a_consumer_at_an_offset_that_the_leader_has_deleted_starts_by_the_reset_policy() -> None:
    async with consumer_bench(auto_offset_reset="earliest") as bench:
        await bench.read(4)
        leader = bench.replicas[1]
        leader.epochs, leader.log_start, leader.gives_bounds = [0] * 9, 7, False
        assert await bench.read(2) == [7, 8]
        assert len(bench.nodes.requests(OffsetForLeaderEpochRequest)) == 1  # the cause may have been a truncation


# the lease on a replica


async def test_a_lease_on_a_follower_ends_at_its_time_however_often_the_leader_names_it() -> None:
    async with consumer_bench(client_rack="a") as bench:
        await _follow(bench)
        at_leader = len(bench.nodes.requests(FetchRequest, 1))
        bench.nodes.passed_ms += 299_000
        await bench.until(lambda: len(bench.nodes.requests(FetchRequest, 2)) > 9)
        assert len(bench.nodes.requests(FetchRequest, 1)) == at_leader
        bench.nodes.passed_ms += 2_000
        await bench.until(lambda: len(bench.nodes.requests(FetchRequest, 1)) > at_leader)
        served = len(bench.nodes.requests(FetchRequest, 2))
        await bench.until(lambda: len(bench.nodes.requests(FetchRequest, 2)) > served)


async def test_a_follower_that_is_gone_and_named_again_costs_less_than_a_change_and_a_request_a_minute() -> None:
    async with consumer_bench(client_rack="a") as bench:
        await _follow(bench)
        bench.nodes.gone = {2}
        partition = bench.consumer._reader.fetcher.assigned.by_name[ORDERS]
        requests, changes = bench.nodes.metadata_requests, partition.replica_changes
        minutes = 30
        for _ in range(minutes * 2):
            bench.nodes.passed_ms += MINUTE_MS // 2
            bench.replicas[1].epochs.append(0)
            assert len(await bench.read(1)) == 1
        assert bench.nodes.metadata_requests - requests < minutes
        assert partition.replica_changes - changes < minutes


async def test_a_follower_that_metadata_do_not_have_is_not_read_from() -> None:
    async with consumer_bench(client_rack="a") as bench:
        bench.nodes.brokers = [1]
        bench.nodes.describe()
        bench.replicas[1].preferred = 2
        before = bench.nodes.metadata_requests
        assert await bench.read(4) == [0, 1, 2, 3]
        assert bench.nodes.metadata_requests == before + 1
        assert not bench.nodes.requests(FetchRequest, 2)


async def test_a_follower_that_only_new_metadata_have_is_read_from_at_once() -> None:
    """The follower was fenced when the metadata came, for it was restarting."""
    async with consumer_bench(client_rack="a") as bench:
        bench.nodes.brokers = [1]
        bench.nodes.describe()
        bench.nodes.brokers = [1, 2]
        bench.replicas[1].preferred = 2
        assert await bench.read(4) == [0, 1, 2, 3]
        assert bench.nodes.metadata_requests == 1
        assert bench.fetched_offsets(2)[:4] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "code", [ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH]
)
async def test_a_follower_that_lags_behind_is_asked_again_and_left_when_it_does_not_catch_up(code: ErrorCode) -> None:
    async with consumer_bench(client_rack="a") as bench:
        await _follow(bench)
        bench.replicas[2].faults = [code, code]
        bench.replicas[2].epochs.append(0)
        assert await bench.read(1) == [4]
        partition = bench.consumer._reader.fetcher.assigned.by_name[ORDERS]
        assert partition.replica == 2
        bench.replicas[2].faults = [code] * 9
        bench.replicas[1].epochs += [0, 0]
        assert await bench.read(1) == [5]
        assert partition.replica is None
        assert len(bench.replicas[2].faults) == 6


@pytest.mark.parametrize(
    ("code", "refreshes"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ErrorCode.REPLICA_NOT_AVAILABLE, True),
        (ErrorCode.KAFKA_STORAGE_ERROR, True),
        (ErrorCode.FENCED_LEADER_EPOCH, True),
        (ErrorCode.OFFSET_NOT_AVAILABLE, True),
        (ErrorCode.UNKNOWN_TOPIC_ID, True),
        (ErrorCode.INCONSISTENT_TOPIC_ID, True),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, False),
    ],
)
async def test_a_fault_of_the_leader_has_metadata_refreshed_unless_the_broker_is_the_one_behind(
    code: ErrorCode, refreshes: bool
) -> None:
    async with consumer_bench() as bench:
        bench.replicas[1].faults = [code]
        before = bench.nodes.metadata_requests
        assert await bench.read(4) == [0, 1, 2, 3]
        assert (bench.nodes.metadata_requests > before) is refreshes


async def test_a_committed_position_goes_with_the_epoch_of_its_last_record() -> None:
    async with consumer_bench() as bench:
        bench.replicas[1].epochs = [0, 0, 3, 3, 5]
        for count, epoch in ((2, 0), (1, 3), (1, 3), (1, 5)):
            await bench.read(count)
            assert bench.consumer._positions()[ORDERS].leader_epoch == epoch
