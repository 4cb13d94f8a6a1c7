from functools import partial
from typing import Any

import pytest

from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import ErrorCode
from tailrace.model.proofs import NO_SECRET
from tailrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tailrace.replication.verification import UNVERIFIED
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, batch_of
from testkit.nodes.ports import DeferredController, DeferredDisk, broker_images, with_secret

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


@pytest.fixture
def node() -> DataPath:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(leader_epoch=2)
    return node


SECRET = b"of the replica 2"


def ask(
    node: DataPath,
    timestamp: int,
    *,
    version: int = 9,
    replica_id: int = -1,
    leader_epoch: int = -1,
    isolation: int = 0,
    partitions: tuple[int, ...] = (0,),
    secret: bytes = NO_SECRET,
) -> list[ListOffsetsPartitionResponse]:
    wanted = tuple(
        ListOffsetsPartition(partition_index=index, current_leader_epoch=leader_epoch, timestamp=timestamp)
        for index in partitions
    )
    topics = (ListOffsetsTopic(name="orders", partitions=wanted),)
    request = ListOffsetsRequest(replica_id=replica_id, isolation_level=isolation, topics=topics, secret=secret)
    response = node.send(request, version).response
    return list(response.topics[0].partitions)


def found(node: DataPath, timestamp: int, **options: Any) -> tuple[int, int, int]:
    (answer,) = ask(node, timestamp, **options)
    assert answer.error_code == 0
    return answer.timestamp, answer.offset, answer.leader_epoch


def produce_at(node: DataPath, *timestamps: int) -> None:
    base = node.clock.now_ms()
    for timestamp in timestamps:
        node.produce("orders", records=batch_of(b"v", now=partial(int.__add__, base, timestamp)))


def test_list_offsets_gives_the_ends_of_the_log(node: DataPath) -> None:
    produce_at(node, 0, 1, 2)
    assert found(node, LATEST) == (-1, 3, 2)
    assert found(node, EARLIEST) == found(node, EARLIEST_LOCAL) == (-1, 0, 2)
    assert found(node, LATEST_TIERED) == (-1, -1, -1)


def test_a_timestamp_finds_the_first_record_that_is_not_older(node: DataPath) -> None:
    base = node.clock.now_ms()
    produce_at(node, 0, 50, 20, 70)
    assert found(node, base - 5) == (base, 0, 2)
    assert found(node, base + 10) == (base + 50, 1, 2)
    assert found(node, base + 60) == (base + 70, 3, 2)
    assert found(node, base + 71) == (-1, -1, -1)


def test_list_offsets_gives_the_largest_timestamp(node: DataPath) -> None:
    assert found(node, MAX_TIMESTAMP) == (-1, -1, -1)
    base = node.clock.now_ms()
    produce_at(node, 0, 50, 20)
    assert found(node, MAX_TIMESTAMP) == (base + 50, 1, 2)


@pytest.mark.parametrize(
    ("timestamp", "first"), [(LATEST, 1), (EARLIEST, 1), (MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9)]
)
@pytest.mark.parametrize("version", range(1, 11))
def test_each_special_timestamp_of_list_offsets_exists_from_its_version_on(
    node: DataPath, timestamp: int, first: int, version: int
) -> None:
    (answer,) = ask(node, timestamp, version=version)
    assert answer.error_code == (0 if version >= first else ErrorCode.UNSUPPORTED_VERSION)


def test_an_unknown_special_timestamp_is_refused(node: DataPath) -> None:
    assert ask(node, -99, version=10)[0].error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_partition_asked_for_twice_is_refused_both_times_and_the_others_are_not(node: DataPath) -> None:
    node.create(partition=1)
    answers = ask(node, LATEST, partitions=(0, 1, 0))
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]


def test_unknown_partitions_and_wrong_epochs_get_their_codes(node: DataPath) -> None:
    assert ask(node, LATEST, partitions=(5,))[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(node, LATEST, leader_epoch=1)[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(node, LATEST, leader_epoch=3)[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    node.create(leader=2, leader_epoch=3)
    assert ask(node, LATEST)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_sees_the_log_end_and_all_others_the_high_watermark() -> None:
    disk = DeferredDisk()
    controller = DeferredController(ClusterImage(brokers=broker_images({1: 10, 2: 20, 3: 30})))
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk, controller=controller)
    node.create(replicas=(1, 2), leader_epoch=0)
    base = node.clock.now_ms()
    node.produce("orders", records=batch_of(b"a", now=lambda: base), acks=1)
    disk.run()
    node.produce("orders", records=batch_of(b"b", now=lambda: base + 9), acks=1)
    assert found(node, LATEST)[1] == 1
    assert found(node, LATEST, replica_id=2, leader_epoch=0)[1] == 2
    assert found(node, base + 5, replica_id=2, leader_epoch=0) == (base + 9, 1, 0)
    for options in ({}, {"replica_id": -2}, {"replica_id": 2}, {"replica_id": 3, "leader_epoch": 0}):
        assert found(node, LATEST, **options)[1] == 1, options
        assert found(node, base + 5, **options) == (-1, -1, -1), options
    controller.image = with_secret(controller.image, 2, SECRET)
    assert found(node, LATEST, replica_id=2, leader_epoch=0)[1] == 1, "the registration needs a secret"
    assert found(node, LATEST, replica_id=2, leader_epoch=0, secret=SECRET)[1] == 2


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)]
)
def test_a_new_leader_below_the_start_of_its_epoch_answers_offset_not_available(version: int, code: int) -> None:
    disk = DeferredDisk()
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create()
    node.produce("orders", b"a", acks=1)
    node.create(leader_epoch=1)
    assert ask(node, LATEST, version=version)[0].error_code == code
    assert ask(node, EARLIEST, version=version)[0].error_code == 0
    disk.run()
    assert found(node, LATEST, version=version)[1] == 1


def test_a_transaction_that_is_older_than_the_leader_does_not_hide_where_committed_data_ends(node: DataPath) -> None:
    """The high watermark is known: only the last stable offset is below the start of the leader's epoch."""
    base = node.clock.now_ms()
    node.produce("orders", b"before")
    node.table.get("orders", 0).staging.append_records(
        [(b"k", b"of an open transaction")],
        now_ms=base + 1,
        on_done=lambda _: None,
        producer_id=7,
        producer_epoch=0,
        verification=UNVERIFIED,
    )
    node.end_turn()
    node.create(leader_epoch=3)
    assert found(node, LATEST)[1] == 2
    assert found(node, LATEST, isolation=1)[1] == 1
    assert found(node, base + 1, isolation=1) == (-1, -1, -1)
