"""Partitions that sleep since a clean stop, until a request or the metadata opens them."""

from dataclasses import replace

import pytest

from tailrace.model.ids import BrokerId
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import Log
from tailrace.storage.checkpoints import GAP_BOUND
from tailrace.storage.recovery.closed_logs import CLOSED_LOGS
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import BROKER, topic_id_of
from testkit.nodes.ports import DeferredDisk
from testkit.records.batches import stored_batch
from unit.server.partitions.table_nodes import (
    ORDERS,
    OTHER_ID,
    add,
    added_node,
    led_by,
    new_node,
    restarted_node,
    started_node,
    stopped_node,
)


def test_a_partition_sleeps_until_it_is_requested(files: SimulatedDisk) -> None:
    stopped_node(files)
    operations = files.operations
    node = new_node(files)
    opened = files.operations - operations
    add(node, leader_epoch=4)
    assert (len(list(node.table)), len(node.table.dormant)) == (0, 1)
    assert files.operations - operations == opened, "nothing of it was touched"
    assert node.table.has("orders", 0)
    assert node.table.size_of("orders", 0) == dict(node.table.sizes())[ORDERS] > 0
    partition = node.table.get_by_id(topic_id_of("orders"), 0)
    assert (partition.is_leader, partition.leader_epoch, partition.high_watermark) == (True, 4, 1)
    assert (len(list(node.table)), len(node.table.dormant)) == (1, 0)
    assert node.values("orders") == [b"kept"]


def test_a_change_of_metadata_after_the_stop_leaves_the_closed_logs_as_they_are(files: SimulatedDisk) -> None:
    """The replica of the metadata log stops later than the partitions, and other brokers that stop change them."""
    node = new_node(files)
    node.create()
    node.produce("orders", b"kept")
    node.table.close()
    add(node)
    node.end_turn()
    node = added_node(files)
    assert node.values("orders") == [b"kept"]


def test_an_unused_partition_is_there_after_many_clean_stops(files: SimulatedDisk) -> None:
    stopped_node(files)
    for _ in range(3):
        node = added_node(files)
        node.table.close()
    node = added_node(files)
    assert node.values("orders") == [b"kept"]


def test_a_sleeping_partition_takes_changes_of_state_and_settings_with_it(files: SimulatedDisk) -> None:
    node = restarted_node(files)
    add(node, leader_epoch=9)
    node.table.update_configs({"orders": TopicConfig(max_message_bytes=50)})
    partition = node.table.get("orders", 0)
    assert (partition.leader_epoch, partition.config.max_message_bytes) == (9, 50)


@pytest.mark.parametrize("spoil", ["remove", "flip", "append"])
def test_without_good_closed_logs_a_partition_is_opened_from_its_files(files: SimulatedDisk, spoil: str) -> None:
    stopped_node(files)
    if spoil == "remove":
        files.unlink(f"/logs/{CLOSED_LOGS}")
    elif spoil == "flip":
        files.flip_bit(f"/logs/{CLOSED_LOGS}", 40)
    else:
        log = Log.open("/logs/orders-0", files=files, config=TopicConfig(), now_ms=0, clean=True)
        log.append([stored_batch(1)])  # another program that knows nothing of the note
        log.close()
    node = started_node(files)
    assert node.values("orders")[:1] == [b"kept"]
    assert node.table.get("orders", 0).log.log_end_offset == (2 if spoil == "append" else 1)


def test_after_a_crash_no_line_of_the_closed_logs_is_used(files: SimulatedDisk) -> None:
    node = restarted_node(files)
    node.produce("orders", b"more")
    node = started_node(files)
    assert node.values("orders") == [b"kept", b"more"]


def test_a_sleeping_log_of_another_topic_of_the_name_is_never_used(files: SimulatedDisk) -> None:
    stopped_node(files)
    node = new_node(files)
    add(node, topic_id=OTHER_ID)
    node.end_turn()
    assert node.values("orders") == []


def test_a_sleeping_partition_can_be_deleted_and_made_again(files: SimulatedDisk) -> None:
    node = restarted_node(files)
    node.table.delete("orders", 0)
    add(node, topic_id=OTHER_ID)
    node.end_turn()
    assert node.table.get("orders", 0).topic_id == OTHER_ID
    assert node.values("orders") == []


def test_a_compacted_log_that_sleeps_may_have_gaps_when_it_is_not_compacted_any_more(files: SimulatedDisk) -> None:
    """Another program has compacted the log, and no file says where."""
    stopped_node(files)
    compacted = TopicConfig(cleanup_policy=("compact",))
    log = Log.open("/logs/orders-0", files=files, config=compacted, now_ms=0, clean=True)
    log.append([stored_batch(7)])
    log.close()
    files.unlink(f"/logs/orders-0/{GAP_BOUND}")
    for starts in range(2):
        node = added_node(files)
        node.table.update_configs({"orders": compacted})
        if not starts:
            assert node.values("orders")[0] == b"kept"
            node.table.close()
    node.table.update_configs({"orders": TopicConfig()})
    node.end_turn()
    assert node.fetch("orders", 3).fetched.error_code == 0


def test_a_compacted_log_that_sleeps_takes_a_state_and_the_settings_that_belong_to_it_at_once() -> None:
    """The other replica was fenced after `min.insync.replicas` had been raised: it may be all that is left one day, and
    has not the last record."""
    files = SimulatedDisk()
    both = led_by(BROKER, BrokerId(2))
    compacted = TopicConfig(cleanup_policy=("compact",))
    node = new_node(files)
    node.table.add(ORDERS, state=both, config=compacted)
    node.end_turn()
    node.produce("orders", b"known to one", acks=1)
    node.table.close()
    node = new_node(files)
    node.table.add(ORDERS, state=both, config=compacted)
    assert len(node.table.dormant) == 1
    raised = TopicConfig(min_insync_replicas=2)
    alone = replace(both, in_sync_replicas=(BROKER,), eligible_leader_replicas=(BrokerId(2),), partition_epoch=1)
    node.table.update(ORDERS, alone, raised)
    node.table.update_configs({"orders": raised})
    partition = node.table.get("orders", 0)
    assert (partition.config, partition.log.log_end_offset, partition.high_watermark) == (raised, 1, 0)


def test_a_stop_of_the_partitions_is_not_held_up_by_a_directory_that_cannot_be_renamed(files: SimulatedDisk) -> None:
    stopped_node(files)
    node = added_node(files, DeferredDisk())
    node.table.delete("orders", 0)
    files.fail_at(files.operations + 1)
    node.table.close()
    assert new_node(files).table.directory.was_clean
