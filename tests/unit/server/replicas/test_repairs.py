"""Repairs of lost replicas of broker 1, on a disk that loses unsynced bytes; broker 2 leads, and gets the requests."""

import re
from dataclasses import replace

import pytest

from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState
from tailrace.model.topic_config import TopicConfig
from tailrace.server.replicas.repairs import FIRST_BACKOFF_MS, FORGOTTEN_MS, LOOK_MS
from tailrace.storage.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, read_offsets
from tailrace.testing.disk import PowerCut
from testkit.nodes.data_path import BROKER
from unit.server.replicas.repair_bench import (
    DAMAGED,
    KEPT_FILE,
    LOG_FILE,
    ORDERS,
    OUT,
    RECORDS,
    RepairedBroker,
    damaged_disk,
    damaged_names,
    lose_a_copy_while_it_is_measured,
    whole_disk,
)

SMALL = TopicConfig(segment_bytes=len(RECORDS[0]), retention_ms=-1)
"""A segment per batch."""


def test_a_damaged_log_that_does_not_open_is_renamed_and_fetched_anew(caplog: pytest.LogCaptureFixture) -> None:
    files = damaged_disk()
    content = files.read_bytes(LOG_FILE)
    node = RepairedBroker(files)
    caplog.clear()
    caplog.set_level("INFO")
    node.settle()
    assert (node.table.has(*ORDERS), len(node.table.offline)) == (True, 0)
    (wanted,) = node.leader_reads
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (0, -1)
    assert files.read_bytes(KEPT_FILE) == content
    assert (node.repairs.kept_logs.directories, node.repairs.in_repair, node.repairs.repaired) == (1, 1, 0)
    assert node.repairs.kept_logs.size_bytes >= len(content)
    node.fetch_all()
    node.take(in_sync_replicas=(BrokerId(2), BROKER))
    assert (node.repairs.in_repair, node.repairs.repaired, node.lost.lost_replicas) == (0, 1, ())
    begin, end = [record.getMessage() for record in caplog.records if "event=replica-repair" in record.getMessage()]
    assert re.match(r"event=replica-repair partition=orders-0 leader=2 repairs=1 reason='.*position \d+", begin)
    assert f"renamed_to=/logs/{DAMAGED} " in begin
    assert re.match(r"event=replica-repaired partition=orders-0 leader=2 took_ms=\d+$", end)


@pytest.mark.parametrize(
    "state",
    [
        replace(OUT, leader=NO_LEADER),
        replace(OUT, leader=BROKER),
        replace(OUT, in_sync_replicas=(BrokerId(2), BROKER)),
        replace(OUT, eligible_leader_replicas=(BROKER,)),
        replace(OUT, last_known_leaders=(BROKER,)),
    ],
    ids=["no leader", "leads", "in sync", "eligible", "last known leader"],
)
def test_damaged_replicas_that_count_or_have_no_leader_are_not_repaired(state: PartitionState) -> None:
    files = damaged_disk()
    node = RepairedBroker(files, state)
    node.settle(10 * LOOK_MS)
    assert damaged_names(files) == []
    node.state = replace(OUT, partition_epoch=20)
    node.settle(LOOK_MS)
    assert damaged_names(files) == [DAMAGED]


def test_a_log_that_is_found_damaged_while_it_is_used_is_fetched_anew() -> None:
    node = RepairedBroker.started(whole_disk())
    partition = node.partition
    node.find_damage()
    node.settle(LOOK_MS)
    assert partition.is_closed
    assert node.partition.log.log_end_offset == 0
    assert node.leader_reads[-1].fetch_offset == 0
    node.fetch_all()
    assert node.partition.high_watermark == 3
    assert node.fetchers.failed_partitions == 0


@pytest.mark.parametrize("is_clean_stop", [False, True], ids=["kill", "clean stop"])
@pytest.mark.parametrize("is_cleanly_started", [False, True], ids=["after a kill", "after a clean stop"])
def test_damage_that_a_read_has_found_is_found_again_by_the_next_start(
    is_clean_stop: bool, is_cleanly_started: bool
) -> None:
    """The damage may be in any segment, and a start looks no further back than the recovery point."""
    files = whole_disk(SMALL)
    assert len([name for name in files.list_dir("/logs/orders-0") if name.endswith(".log")]) == 3
    if is_cleanly_started:
        node = RepairedBroker.started(files, config=SMALL)
        node.table.close()
    node = RepairedBroker.started(files, leader_says=None, config=SMALL)
    files.flip_bit("/logs/orders-0/00000000000000000001.log", 70)
    node.partition.log.condemn("the batch at 1 is damaged", offset=1)
    node.settle()
    if is_clean_stop:
        node.table.close()
    again = RepairedBroker.started(files, leader_says=None, config=SMALL)
    assert (again.lost.lost_replicas, len(again.table.offline)) == ((ORDERS,), 1)
    ends = again.table.offline.log_ends(ORDERS)
    assert ends is not None
    assert (ends.good_end_offset, ends.acknowledged_end_offset) == (1, 3)


def test_the_fetches_of_a_damaged_log_count_no_more_before_it_is_renamed() -> None:
    """The leader may propose it in sync for a fetch that left before; it forgets these when its epoch ends."""
    node = RepairedBroker.started(whole_disk())
    node.partition.log.condemn("a damaged batch at 1")
    node.settle(10 * LOOK_MS)
    assert damaged_names(node.files) == []
    node.take(leader_epoch=LeaderEpoch(5))
    node.settle(LOOK_MS)
    assert damaged_names(node.files) == [DAMAGED]


def test_while_a_damaged_log_is_renamed_clients_get_that_it_is_offline() -> None:
    node = RepairedBroker.started(whole_disk())
    node.find_damage()
    node.clock.advance(LOOK_MS)
    assert node.table.is_leaving(ORDERS)
    with pytest.raises(KafkaError, match="a damaged batch at 1") as caught:
        node.table.get(*ORDERS)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_topic_that_is_deleted_during_a_repair_does_not_come_back() -> None:
    files = damaged_disk()
    node = RepairedBroker(files)
    topic = node.image.topics["orders"]
    node.clock.advance(0)
    assert node.table.is_leaving(ORDERS)
    node.applier.on_image(ClusterImage(), ImageDelta(deleted_topics=(topic,)))
    node.state = replace(node.state, replicas=(BrokerId(2),))
    node.settle()
    assert not node.table.has(*ORDERS)
    assert [name for name in files.list_dir("/logs") if name.startswith("orders")] == [DAMAGED]


def test_a_topic_that_is_deleted_while_its_damaged_log_cannot_be_moved_leaves_nothing() -> None:
    files = damaged_disk()
    node = RepairedBroker(files)
    topic = node.image.topics["orders"]
    node.clock.advance(0)
    assert node.table.is_leaving(ORDERS)
    node.is_deleted = True
    node.applier.on_image(node.image, ImageDelta(deleted_topics=(topic,)))
    files.fail_at(files.operations + 1)
    node.settle()
    node.settle(TopicConfig().file_delete_delay_ms)
    assert len(node.table.offline) == 0
    assert [name for name in files.list_dir("/logs") if name.startswith("orders")] == []


def test_a_replica_that_is_damaged_again_is_repaired_ever_later() -> None:
    node = RepairedBroker.started(damaged_disk())
    waited = []
    for _ in range(3):
        node.find_damage()
        since_ms = node.clock.monotonic_ms()
        for _ in range(100):
            node.settle(LOOK_MS)
            if not node.lost.lost_replicas:
                break
        waited.append(node.clock.monotonic_ms() - since_ms)
    for found, least in zip(waited, (1, 2, 4), strict=True):
        assert (least - 0.5) * FIRST_BACKOFF_MS <= found <= (least + 0.5) * FIRST_BACKOFF_MS
    node.settle(FORGOTTEN_MS)
    node.find_damage()
    node.settle(LOOK_MS)
    assert node.lost.lost_replicas == ()
    assert len(damaged_names(node.files)) == 5, "all of them are kept"


def test_a_damaged_log_that_cannot_be_moved_stays_what_it_is_and_is_tried_again() -> None:
    files = damaged_disk()
    node = RepairedBroker(files)
    files.fail_at(files.operations + 1)
    node.settle()
    assert (damaged_names(files), len(node.table.offline), node.lost.lost_replicas) == ([], 1, (ORDERS,))
    node.settle(FIRST_BACKOFF_MS)
    assert damaged_names(files) == [DAMAGED]


@pytest.mark.parametrize("is_cleanly_started", [False, True], ids=["after a kill", "after a clean stop"])
def test_a_log_found_damaged_in_use_that_cannot_be_moved_does_not_pass_for_a_whole_one(
    is_cleanly_started: bool,
) -> None:
    """After a clean stop too, a log may have been in use since."""
    files = whole_disk()
    if is_cleanly_started:
        node = RepairedBroker.started(files)
        node.table.close()
    node = RepairedBroker.started(files)
    assert node.table.directory.was_clean == is_cleanly_started
    files.flip_bit(LOG_FILE, len(RECORDS[0]) + 70)
    node.find_damage()
    ends = node.table.offline.log_ends(ORDERS)
    node.lost.lost(ORDERS)
    node.settle()
    files.fail_at(files.operations + 1)
    node.settle(LOOK_MS)
    assert (damaged_names(files), len(node.table.offline), node.lost.lost_replicas) == ([], 1, (ORDERS,))
    assert node.table.offline.log_ends(ORDERS) == ends, "its known offsets stay known"
    node.settle(LOOK_MS)
    assert (node.lost.lost_replicas, node.fetchers.is_fetching(ORDERS)) == ((ORDERS,), False)
    node.take()  # whatever changes: the log is opened again, and looked through
    node.settle(LOOK_MS)
    assert (len(node.table.offline), node.lost.lost_replicas) == (1, (ORDERS,))
    node.settle(FIRST_BACKOFF_MS)
    assert damaged_names(files) == [DAMAGED]
    assert (len(node.table.offline), node.leader_reads[-1].fetch_offset) == (0, 0)


def test_a_renamed_damaged_log_is_no_partition_and_is_never_removed() -> None:
    files = damaged_disk()
    node = RepairedBroker.started(files)
    node.fetch_all()
    node.table.close()
    again = RepairedBroker.started(files)
    assert damaged_names(files) == [DAMAGED]
    assert again.table.unclaimed == frozenset()
    assert again.repairs.kept_logs == node.repairs.kept_logs
    assert again.partition.log.log_end_offset == 3


@pytest.mark.parametrize("after", [False, True])
def test_whenever_the_power_goes_no_damaged_log_passes_for_a_short_one(after: bool) -> None:
    """From the first operation of a repair to the last, which the records are on the disk again."""
    steps = 0
    while True:
        files = damaged_disk()
        content = files.read_bytes(LOG_FILE)
        node = RepairedBroker(files)
        files.cut_power_at(files.operations + 1 + steps, after=after)
        try:
            node.settle()
            node.fetch_all()
            node.write_checkpoints()
        except PowerCut:
            files.reboot()
        else:
            break
        steps += 1
        again = RepairedBroker(files)
        found = again.table.find(*ORDERS)
        kept = damaged_names(files)
        if found is None:
            assert again.lost.lost_replicas == (ORDERS,)
            assert not kept
        else:
            end_offset = found.log.log_end_offset
            assert kept == [DAMAGED]
            assert end_offset in (0, 3), "either nothing, or the records that were fetched again"
        again.settle(LOOK_MS)
        assert damaged_names(files) == [DAMAGED]
        assert files.read_bytes(KEPT_FILE) == content
        (wanted,) = again.leader_reads
        if wanted.fetch_offset == 0:
            again.fetch_all()
        assert again.partition.log.log_end_offset == 3
    assert steps > 10


def test_a_repair_goes_on_if_old_files_are_removed_while_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    files = damaged_disk()
    node = RepairedBroker(files)
    lose_a_copy_while_it_is_measured(files, monkeypatch)
    node.settle()
    assert (node.table.has(*ORDERS), len(node.table.offline), node.leader_reads[-1].fetch_offset) == (True, 0, 0)
    assert node.repairs.kept_logs.directories == 1


def test_after_a_repair_the_checkpoints_speak_of_the_new_log() -> None:
    files = damaged_disk()
    node = RepairedBroker.started(files)
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        assert ORDERS not in read_offsets(files, "/logs", name)
    node.fetch_all()
    node.write_checkpoints()
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        assert read_offsets(files, "/logs", name)[ORDERS] == 3


@pytest.mark.parametrize(
    "says",
    [None, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
)
def test_a_repair_touches_nothing_before_the_leader_has_answered_a_read(says: ErrorCode | None) -> None:
    """After the death of all nodes the image may name a leader that comes back damaged too."""
    files = damaged_disk()
    content = files.read_bytes(LOG_FILE)
    node = RepairedBroker.started(files, leader_says=says)
    for _ in range(3):
        node.settle(LOOK_MS)
    assert node.reads == 4
    assert (files.read_bytes(LOG_FILE), damaged_names(files)) == (content, [])
    node.leader_says = ErrorCode.OFFSET_OUT_OF_RANGE
    node.settle(LOOK_MS)
    assert damaged_names(files) == [DAMAGED]
