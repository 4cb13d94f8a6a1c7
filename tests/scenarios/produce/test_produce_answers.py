"""When a broker answers a producer, by acks, in-sync replicas and timeouts, and with which error."""

from typing import Any

import pytest

from scenarios.produce.produced_batches import batch, damaged
from tailrace.model.errors import ErrorCode
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, batch_of
from testkit.nodes.ports import DeferredDisk


@pytest.mark.parametrize("version", [3, 8, 12])
@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_acks_other_than_minus_1_0_and_1_are_refused_with_21(acks: int, version: int) -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create()
    answer = node.produce("orders", b"v", acks=acks, version=version).produced
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert node.values("orders") == []


def test_acks_0_has_no_response_and_any_error_closes_the_connection() -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create()
    assert node.produce("orders", b"v", acks=0).is_answered
    assert (node.connection.answers, node.connection.is_open) == ({0: None}, True)
    node.produce("orders", records=damaged(), acks=0)
    assert not node.connection.is_open
    assert node.table.get("orders", 0).log.log_end_offset == 1


def test_acks_1_answers_after_the_local_append_and_acks_all_when_the_high_watermark_has_passed() -> None:
    disk = DeferredDisk()
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create(replicas=(1, 2), in_sync=(1, 2))
    by_leader, by_all = node.produce("orders", b"v", acks=1), node.produce("orders", b"w", acks=-1)
    assert (by_leader.is_answered, by_all.is_answered) == (True, False)
    disk.run()
    node.end_turn()
    assert not by_all.is_answered
    node.create(replicas=(1, 2), in_sync=(1,))
    assert by_all.produced.base_offset == 1


def test_acks_1_of_a_leader_alone_in_sync_answers_when_the_high_watermark_has_passed() -> None:
    """Decision 0078: the record can be read by any request that comes behind the answer, as in Kafka."""
    disk = DeferredDisk()
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create()
    produced = node.produce("orders", b"v", acks=1)
    assert not produced.is_answered
    disk.run()
    node.end_turn()
    assert produced.produced.base_offset == 0
    assert node.values("orders") == [b"v"]


def test_acks_all_answers_7_at_its_timeout_and_the_records_stay() -> None:
    disk = DeferredDisk()
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create(replicas=(1, 2), in_sync=(1, 2))
    waiting = node.produce("orders", b"v", timeout_ms=500)
    node.clock.advance(499)
    assert not waiting.is_answered
    node.clock.advance(1)
    assert waiting.produced.error_code == ErrorCode.REQUEST_TIMED_OUT
    disk.run()
    node.create(replicas=(1, 2), in_sync=(1,))
    node.end_turn()
    assert node.values("orders") == [b"v"]


def in_sync_of_two(*in_sync: int, min_insync_replicas: int = 2, **options: Any) -> DataPath:
    node = DataPath("/logs", files=SimulatedDisk(), **options)
    config = TopicConfig(min_insync_replicas=min_insync_replicas)
    node.create(replicas=(1, 2), in_sync=in_sync, config=config)
    return node


def test_acks_all_with_fewer_in_sync_replicas_than_min_insync_replicas_is_19_before_the_append() -> None:
    node = in_sync_of_two(1)
    assert node.produce("orders", b"v").produced.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert node.table.get("orders", 0).log.log_end_offset == 0
    assert node.produce("orders", b"v", acks=1).produced.error_code == 0


def test_min_insync_replicas_counts_as_the_number_of_replicas_at_most() -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(config=TopicConfig(min_insync_replicas=3))
    assert node.produce("orders", b"v").produced.error_code == 0


def test_the_high_watermark_does_not_pass_with_too_few_in_sync_replicas_so_acks_all_waits() -> None:
    """Kafka answers 20 when the high watermark passes; here it does not pass (KIP-966), and 20 comes at the end."""
    node = in_sync_of_two(1, 2)
    waiting = node.produce("orders", b"v", timeout_ms=500)
    node.create(replicas=(1, 2), in_sync=(1,), config=TopicConfig(min_insync_replicas=2))
    node.end_turn()
    assert not waiting.is_answered
    assert node.table.get("orders", 0).high_watermark == 0
    node.clock.advance(500)
    assert waiting.produced.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_a_produce_to_an_internal_topic_is_refused_with_17_unless_the_admin_client_writes(topic: str) -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(topic)
    assert node.produce(topic, b"v", acks=1).produced.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert node.produce(topic, b"v", acks=1, client_id="__admin_client").produced.error_code == 0


def test_each_partition_of_a_produce_request_fails_alone() -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create()
    node.create(partition=1)
    parts = tuple(
        PartitionProduceData(index=index, records=records) for index, records in ((0, damaged()), (1, batch()))
    )
    request = ProduceRequest(
        acks=-1, timeout_ms=1_000, topic_data=(TopicProduceData(name="orders", partition_data=parts),)
    )
    (topic,) = node.send(request, 12).response.responses
    assert [answer.error_code for answer in topic.partition_responses] == [ErrorCode.CORRUPT_MESSAGE, 0]


def test_a_produce_to_a_former_leader_is_6_and_from_v10_on_the_new_leader_is_named() -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(leader=2, leader_epoch=4, replicas=(1, 2), in_sync=(1, 2))
    for version, named in ((9, (-1, -1)), (10, (2, 4))):
        answer = node.produce("orders", b"v", version=version).produced
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == named


def test_a_batch_that_is_refused_leaves_no_trace_in_the_state_of_its_producer() -> None:
    """'validate sizes -> ... -> producer-state check -> write': the next batch has the refused one's number."""
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(config=TopicConfig(max_message_bytes=200))
    too_large = batch_of(b"v" * 300, producer_id=7, producer_epoch=0, base_sequence=0)
    assert node.produce("orders", records=too_large).produced.error_code == ErrorCode.MESSAGE_TOO_LARGE
    small = batch_of(b"v", producer_id=7, producer_epoch=0, base_sequence=0)
    assert node.produce("orders", records=small).produced.base_offset == 0
