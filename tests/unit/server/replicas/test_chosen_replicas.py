"""Damaged replicas that an administrator has chosen to lead with what is left of them."""

from dataclasses import replace
from typing import Any

import pytest

from tailrace.metadata.image import ImageDelta, TopicImage
from tailrace.model.errors import StorageError
from tailrace.model.ids import NO_LEADER, LeaderEpoch
from tailrace.server.partitions.damage_cut import DamageCut
from tailrace.server.replicas.repairs import LOOK_MS
from tailrace.storage.checkpoints import GAP_BOUND, PARTITION_METADATA, write_gap_bound
from tailrace.testing.disk import PowerCut, SimulatedDisk
from testkit.nodes.data_path import BROKER
from testkit.records.batches import stored_batch, stored_marker
from unit.server.replicas.repair_bench import (
    DAMAGED,
    KEPT_FILE,
    LOG_FILE,
    ORDERS,
    OUT,
    RECORDS,
    TOPIC_ID,
    RepairedBroker,
    batch,
    damaged_disk,
    damaged_names,
    lose_a_copy_while_it_is_measured,
    whole_disk,
)

CHOSEN = {"leader": BROKER, "in_sync_replicas": (BROKER,), "is_recovering": True, "accepts_loss": True}


LEADERLESS = replace(OUT, leader=NO_LEADER, in_sync_replicas=())


def leads_with(node: RepairedBroker, end_offset: int) -> None:
    """The replica leads with a log that ends here, and is neither lost nor given up."""
    assert (node.partition.is_leader, node.partition.log.log_end_offset) == (True, end_offset)
    assert (node.lost.lost_replicas, node.lost.given_up_replicas) == ((), [])


def is_durable(files: SimulatedDisk, end_offset: int) -> None:
    """After a power cut the replica is still whole, and its log ends here."""
    files.power_cut()
    files.reboot()
    again = RepairedBroker(files, LEADERLESS)
    assert (again.lost.lost_replicas, again.partition.log.log_end_offset) == ((), end_offset)


def choose(node: RepairedBroker, **changes: Any) -> None:
    node.take(leader_epoch=LeaderEpoch(node.state.leader_epoch + 1), **(CHOSEN | changes))
    node.settle(LOOK_MS)


def test_a_replica_that_was_chosen_is_cut_where_it_is_damaged_and_leads(caplog: pytest.LogCaptureFixture) -> None:
    files = damaged_disk()
    content = files.read_bytes(LOG_FILE)
    node = RepairedBroker(files, LEADERLESS)
    node.settle(LOOK_MS)
    assert files.read_bytes(LOG_FILE) == content
    choose(node)
    partition = node.partition
    assert (partition.is_leader, partition.log.log_end_offset, node.lost.lost_replicas) == (True, 1, ())
    assert node.considered == [partition], "the recovery is reported at once"
    assert files.read_bytes(KEPT_FILE) == content
    assert (node.repairs.kept_logs.directories, len(node.table.offline)) == (1, 0)
    (line,) = [record.getMessage() for record in caplog.records if "event=replica-cut " in record.getMessage()]
    assert "partition=orders-0 end_offset=1 acknowledged_up_to=3 reason='" in line
    is_durable(files, 1)


@pytest.mark.parametrize(
    "changes", [{"accepts_loss": False}, {"accepts_loss": False, "unclean_epoch": 5}, {"leader": NO_LEADER}]
)
def test_no_other_election_cuts_a_damaged_replica(changes: dict[str, Any]) -> None:
    files = damaged_disk()
    content = files.read_bytes(LOG_FILE)
    node = RepairedBroker(files, LEADERLESS)
    choose(node, **changes)
    node.settle(LOOK_MS)
    assert files.read_bytes(LOG_FILE) == content
    assert (node.lost.lost_replicas, damaged_names(files)) == ((ORDERS,), [])


def test_a_cut_of_a_chosen_replica_goes_on_if_old_files_are_removed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    files = damaged_disk()
    node = RepairedBroker.started(files, LEADERLESS)
    lose_a_copy_while_it_is_measured(files, monkeypatch)
    choose(node)
    leads_with(node, 1)


def test_damage_that_a_read_has_found_far_below_the_recovery_point_is_cut() -> None:
    """The start would not look there."""
    files = whole_disk()
    node = RepairedBroker.started(files, LEADERLESS)
    assert node.partition.log.log_end_offset == 3
    files.flip_bit(LOG_FILE, len(RECORDS[0]) + 70)
    node.partition.log.condemn("the batch at 1 is damaged", offset=1)
    ends = node.table.offline.log_ends(ORDERS)
    assert ends is not None
    assert (ends.good_end_offset, ends.acknowledged_end_offset, bool(ends.fault)) == (1, 3, True)
    choose(node)
    leads_with(node, 1)


def test_a_replica_that_is_damaged_in_its_first_batch_leads_with_nothing() -> None:
    files = whole_disk()
    files.flip_bit(LOG_FILE, 70)
    node = RepairedBroker.started(files, LEADERLESS)
    choose(node)
    leads_with(node, 0)
    is_durable(files, 0)


def test_a_replica_whose_bound_of_gaps_is_damaged_leads_with_all_it_has() -> None:
    files = whole_disk()
    path = f"/logs/orders-0/{GAP_BOUND}"
    write_gap_bound(files, "/logs/orders-0", 2)
    files.flip_bit(path, 0)
    content = files.read_bytes(path)
    node = RepairedBroker.started(files, LEADERLESS)
    assert node.lost.lost_replicas == (ORDERS,)
    choose(node)
    leads_with(node, 3)
    assert files.read_bytes(f"/logs/{DAMAGED}/{GAP_BOUND}") == content


def test_a_replica_whose_topic_cannot_be_read_is_not_opened_before_it_was_chosen() -> None:
    """The log may be another topic's. The administrator, by the choice, says that it is not."""
    files = whole_disk()
    files.flip_bit(f"/logs/orders-0/{PARTITION_METADATA}", 0)
    node = RepairedBroker.started(files, LEADERLESS)
    node.take()
    assert (node.lost.lost_replicas, len(node.table.offline)) == ((ORDERS,), 1)
    choose(node)
    leads_with(node, 3)
    is_durable(files, 3)


@pytest.mark.parametrize("is_cleanly_started", [False, True], ids=["after a kill", "after a clean stop"])
def test_a_log_that_was_cut_knows_its_aborted_transactions(is_cleanly_started: bool) -> None:
    """The cut takes the last segment's index; after a clean close a log without the index aborted nothing."""
    records = [
        bytes(stored_batch(0, producer_id=4, base_sequence=0, leader_epoch=4, is_transactional=True).buffer),
        bytes(stored_marker(1, producer_id=4, leader_epoch=4, is_commit=False).buffer),
        batch(2, b"good"),
        batch(3, b"damaged"),
    ]
    files = SimulatedDisk(3)
    node = RepairedBroker.started(files)
    node.answer(*records, high_watermark=4)
    node.write_checkpoints()
    if is_cleanly_started:
        node.table.close()
    node = RepairedBroker.started(files, LEADERLESS)
    log = node.partition.log
    aborted = log.aborted_transactions(0, 2)
    assert len(aborted) == 1
    files.flip_bit(LOG_FILE, sum(map(len, records[:3])) + 70)
    log.condemn("the batch at 3 is damaged", offset=3)
    choose(node)
    log = node.partition.log
    assert (log.log_end_offset, log.aborted_transactions(0, 2)) == (3, aborted)


def test_a_chosen_replica_that_turns_out_to_be_whole_loses_nothing() -> None:
    files = whole_disk()
    node = RepairedBroker.started(files, LEADERLESS)
    node.partition.log.condemn("read wrong, and right the next time", offset=1)
    choose(node)
    assert node.partition.log.log_end_offset == 3


def test_a_chosen_replica_that_is_only_short_leads_as_it_is() -> None:
    node = RepairedBroker.started(whole_disk(), LEADERLESS)
    node.lost.lost(ORDERS)
    choose(node)
    assert (node.lost.lost_replicas, node.partition.log.log_end_offset) == ((), 3)
    assert damaged_names(node.files) == []


def test_a_replica_that_cannot_be_copied_is_not_cut_and_leaves_again(caplog: pytest.LogCaptureFixture) -> None:
    files = damaged_disk()
    content = files.read_bytes(LOG_FILE)
    node = RepairedBroker.started(files, LEADERLESS)
    node.take(leader_epoch=LeaderEpoch(5), **CHOSEN)
    files.fail_at(files.operations + 1, "No space left on device")
    node.settle(LOOK_MS)
    assert node.lost.given_up_replicas[:1] == [ORDERS]
    assert (node.lost.lost_replicas, files.read_bytes(LOG_FILE)) == ((ORDERS,), content)
    assert "event=replica-cut-failed partition=orders-0 fault=" in caplog.text


def test_a_cut_of_a_chosen_replica_is_given_up_until_the_next_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt copies the tail of the log, and the controller may take long to act on the report."""

    def fail(cut: DamageCut) -> None:
        cut.fault = StorageError("more is damaged")

    files = damaged_disk()
    node = RepairedBroker(files, LEADERLESS)
    with monkeypatch.context() as patched:
        patched.setattr(DamageCut, "cut", fail)
        choose(node)
        for _ in range(3):
            node.settle(LOOK_MS)
        node.take(in_sync_replicas=(BROKER,))
        node.settle(LOOK_MS)
    assert (node.lost.given_up_replicas, damaged_names(files)) == ([ORDERS], [DAMAGED])
    choose(node, leader=NO_LEADER, in_sync_replicas=())
    choose(node)
    assert (node.lost.lost_replicas, node.partition.is_leader) == ((), True)


def test_a_partition_that_is_deleted_while_its_log_is_cut_leaves_nothing_but_the_copy() -> None:
    files = damaged_disk()
    node = RepairedBroker.started(files, LEADERLESS)
    node.take(leader_epoch=LeaderEpoch(9), **CHOSEN)
    node.clock.advance(LOOK_MS)
    assert node.disk.works, "it is being copied"
    gone = TopicImage(name="orders", topic_id=TOPIC_ID, partitions={0: node.state})
    node.is_deleted = True
    node.applier.on_image(node.image, ImageDelta(deleted_topics=(gone,)))
    node.settle(1)
    node.settle(1)
    assert files.list_dir("/logs").count("orders-0") == 0
    assert damaged_names(files) == [DAMAGED]


def test_a_power_cut_at_any_moment_leaves_a_damaged_log_or_one_that_is_cut() -> None:
    """The copy of the part that is cut off is durable before the cut."""
    operation, moments = 0, 0
    while True:
        files = damaged_disk()
        content = files.read_bytes(LOG_FILE)
        node = RepairedBroker.started(files, LEADERLESS)
        operation += 1
        files.cut_power_at(files.operations + operation)
        try:
            choose(node)
        except PowerCut:
            moments += 1
        else:
            break
        files.reboot()
        again = RepairedBroker.started(files, LEADERLESS)
        if again.lost.lost_replicas:
            assert files.read_bytes(LOG_FILE)[: len(content)] in (content, content[: len(RECORDS[0])])
            choose(again)
        assert again.partition.log.log_end_offset == 1
        copies = [
            files.read_bytes(f"/logs/{name}/00000000000000000000.log")
            for name in damaged_names(files)
            if files.exists(f"/logs/{name}/00000000000000000000.log")
        ]
        assert content in copies
    assert moments >= 8
