import errno
from dataclasses import replace

import pytest

from tailrace.model.errors import ErrorCode, KafkaError, StorageError
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import stamp
from tailrace.replication.outcomes import NotLeader
from tailrace.replication.partition import Partition
from tailrace.replication.verification import UNVERIFIED
from tailrace.server.partitions import partition_checkpoints
from tailrace.server.partitions.periodic_work import PartitionPasses
from tailrace.server.partitions.renamed_directories import RenamedDirectories
from tailrace.server.partitions.table import KnownLeader
from tailrace.storage import Log
from tailrace.storage.checkpoints import GAP_BOUND, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, read_offsets
from tailrace.storage.recovery.closed_logs import CLOSED_LOGS
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.clocks import TickingClock
from testkit.nodes.data_path import BROKER, DataPath, batch_of, topic_id_of
from testkit.nodes.ports import DeferredDisk, LedElsewhere, NotedFailures
from testkit.records.batches import stored_batch

ORDERS = TopicPartition("orders", 0)
OTHER_ID = TopicId(b"another topic id")


@pytest.fixture
def files() -> SimulatedDisk:
    return SimulatedDisk()


def new_node(
    files: SimulatedDisk | None = None, disk: DeferredDisk | None = None, failures: NotedFailures | None = None
) -> DataPath:
    return DataPath("/logs", files=files or SimulatedDisk(), disk=disk, failures=failures)


def code_of(caught: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return caught.value.code


def test_a_partition_is_found_by_name_and_by_id() -> None:
    node = new_node()
    partition = node.create("orders", partition=2)
    assert node.table.get("orders", 2) is partition
    assert node.table.get_by_id(topic_id_of("orders"), 2) is partition
    assert node.table.find("orders", 0) is None


def test_an_unknown_partition_is_unknown_and_a_foreign_one_names_its_leader() -> None:
    node = new_node()
    with pytest.raises(KafkaError) as caught:
        node.table.get("far", 0)
    assert code_of(caught) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError) as caught:
        node.table.get_by_id(topic_id_of("far"), 0)
    assert code_of(caught) is ErrorCode.UNKNOWN_TOPIC_ID
    node.table.leaders = LedElsewhere({topic_id_of("far"): "far"})
    with pytest.raises(NotLeader) as elsewhere:
        node.table.get("far", 0)
    assert (elsewhere.value.leader, elsewhere.value.leader_epoch) == (2, 5)
    with pytest.raises(NotLeader):
        node.table.get_by_id(topic_id_of("far"), 0)
    with pytest.raises(KafkaError) as caught:
        node.table.get_by_id(topic_id_of("far"), 3)
    assert code_of(caught) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_creating_a_partition_that_is_here_changes_its_role_only() -> None:
    node = new_node()
    partition = node.create()
    node.produce("orders", b"a")
    assert node.create(leader_epoch=3) is partition
    assert partition.leader_epoch == 3
    assert node.values("orders") == [b"a"]


def test_a_deleted_partition_is_gone_at_once_and_its_files_after_their_delay(files: SimulatedDisk) -> None:
    node = new_node(files)
    node.create(config=TopicConfig(file_delete_delay_ms=1000))
    waiting = node.fetch("orders", 0, max_wait_ms=5000, version=12)
    node.table.delete("orders", 0)
    node.end_turn()
    assert waiting.fetched.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [name for name in files.list_dir("/logs") if name.endswith("-delete")]
    node.clock.advance(1000)
    assert files.list_dir("/logs") == []


def test_a_topic_made_again_under_its_old_name_starts_empty_also_after_a_crash(files: SimulatedDisk) -> None:
    node = new_node(files)
    node.create()
    node.produce("orders", b"old", b"older")
    node.table.checkpoints.write_recovery_points()
    node.table.delete("orders", 0)
    node.end_turn()
    node.create(topic_id=OTHER_ID)
    node.produce("orders", b"new")
    again = new_node(files)  # the first node was never closed
    again.create(topic_id=OTHER_ID)
    again.end_turn()
    assert again.values("orders") == [b"new"]


def test_a_topic_made_again_waits_until_no_flush_of_the_old_one_is_under_way() -> None:
    disk = DeferredDisk()
    node = new_node(disk=disk)
    node.create()
    node.produce("orders", b"old", acks=1)
    (log, done) = disk.waiting.pop()
    ticket = log.flushes.begin()
    node.table.delete("orders", 0)
    state = node.create("orders", partition=1, topic_id=OTHER_ID).state
    assert state is not None
    assert node.table.create(TopicPartition("orders", 0), state=state, config=TopicConfig()) is None
    ticket.sync()
    log.flushes.finish(ticket)
    done()
    disk.run()
    assert node.table.get("orders", 0).topic_id == OTHER_ID
    assert node.table.get("orders", 0).log.log_end_offset == 0


@pytest.mark.parametrize("fails", [1, 2], ids=["once", "again"])
@pytest.mark.parametrize("is_made_before", [True, False], ids=["made before", "made after"])
def test_a_topic_is_not_without_its_partition_when_the_one_before_cannot_be_renamed(
    is_made_before: bool, fails: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The new topic tries the rename again; if that fails too, its partition is offline, and reported."""
    files, disk, failures = SimulatedDisk(), DeferredDisk(), NotedFailures()
    node = new_node(files, disk, failures)
    old = node.create()
    node.produce("orders", b"old", acks=1)
    disk.run()
    rename, left = RenamedDirectories.rename_deleted, fails

    def fail(directory: RenamedDirectories, partition: TopicPartition, topic_id: TopicId) -> str:
        nonlocal left
        left -= 1
        if left >= 0:
            raise StorageError("Input/output error")
        return rename(directory, partition, topic_id)

    monkeypatch.setattr(RenamedDirectories, "rename_deleted", fail)
    assert old.state is not None
    made = replace(old.state, topic_id=OTHER_ID)
    node.table.delete("orders", 0)
    if is_made_before:
        node.table.add(ORDERS, state=made, config=TopicConfig())
    while disk.works or disk.waiting:
        disk.run()
        node.end_turn()
    assert "event=partition-delete-failed partition=orders-0" in caplog.text
    assert not node.table.is_leaving(ORDERS)
    if not is_made_before and fails == 1:
        node.table.add(ORDERS, state=made, config=TopicConfig())
    elif not is_made_before:
        with pytest.raises(StorageError, match="Input/output error"):
            node.table.add(ORDERS, state=made, config=TopicConfig())
    if fails == 1:
        assert node.table.get("orders", 0).topic_id == OTHER_ID
        assert (node.values("orders"), failures.all) == ([], [])
        return
    with pytest.raises(KafkaError, match="is offline: Input/output error") as caught:
        node.table.get("orders", 0)
    assert code_of(caught) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [kind for kind, *_ in failures.all] == ["lost"]
    partition = node.table.create(ORDERS, state=made, config=TopicConfig())
    assert partition is not None
    assert partition.topic_id == OTHER_ID, "the next change of its state tries again"


def test_a_topic_is_made_again_when_an_administrator_has_removed_the_directory_of_the_one_before(
    files: SimulatedDisk,
) -> None:
    node = new_node(files)
    node.create()
    node.end_turn()
    files.remove_tree("/logs/orders-0")
    node.table.delete("orders", 0)
    node.end_turn()
    assert node.create(topic_id=OTHER_ID).topic_id == OTHER_ID
    assert node.values("orders") == []


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_fault_of_a_deleted_log_is_not_charged_to_a_topic_that_has_its_name(is_damaged: bool) -> None:
    files, disk, failures = SimulatedDisk(), DeferredDisk(), NotedFailures()
    node = new_node(files, disk, failures)
    old = node.create()
    disk.run()
    node.produce("orders", b"old", acks=1)
    assert old.state is not None
    node.table.delete("orders", 0)
    made = replace(old.state, topic_id=OTHER_ID)
    assert node.table.create(ORDERS, state=made, config=TopicConfig()) is None, "the old log waits for its flush"
    if is_damaged:
        old.log.condemn("a read that had begun before has found a wrong checksum")
    else:
        files.write_short_at(files.operations + 1, 10)
        files.fail_at(files.operations + 2)  # what was written cannot be cut back
        with pytest.raises(StorageError):
            old.following.append(batch_at(1))
    assert old.log.is_offline
    disk.run()
    assert node.table.get("orders", 0).topic_id == OTHER_ID
    assert failures.all == []


def batch_at(base_offset: int) -> bytes:
    made = bytearray(batch_of(b"late"))
    stamp(made, 0, base_offset, 0)
    return bytes(made)


def test_a_log_that_fails_while_it_waits_for_a_flush_can_be_deleted() -> None:
    files, disk = SimulatedDisk(), DeferredDisk()
    node = new_node(files, disk)
    partition = node.create()
    disk.run()
    node.produce("orders", b"old", acks=1)
    files.write_short_at(files.operations + 1, 10)
    files.fail_at(files.operations + 2)  # what was written cannot be cut back
    node.produce("orders", b"torn", acks=1)
    assert partition.log.is_offline
    node.table.delete("orders", 0)
    disk.run()
    assert node.create(topic_id=OTHER_ID).topic_id == OTHER_ID, "the name is free"


def test_a_clean_stop_needs_no_recovery_and_a_crash_does(files: SimulatedDisk) -> None:
    node = new_node(files)
    node.create()
    node.produce("orders", b"a")
    node.table.close()
    node = new_node(files)
    assert node.create().log.recovery.clean
    node.produce("orders", b"b")
    node = new_node(files)
    assert not node.create().log.recovery.clean
    node.end_turn()
    assert node.values("orders") == [b"a", b"b"]


def test_a_partition_whose_log_is_damaged_is_offline_and_the_others_are_not(files: SimulatedDisk) -> None:
    node = new_node(files)
    node.create("orders")
    node.create("invoices")
    node.produce("orders", b"a" * 100)
    node.table.checkpoints.write_recovery_points()
    node.end_turn()
    files.flip_bit("/logs/orders-0/00000000000000000000.log", 80)
    again = new_node(files)
    with pytest.raises(KafkaError):
        again.create("orders")
    again.create("invoices")
    assert again.produce("orders", b"b").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert again.produce("invoices", b"b").produced.error_code == 0


def test_damage_is_damage_after_every_stop_and_is_never_taken_for_a_torn_end(files: SimulatedDisk) -> None:
    node = new_node(files)
    node.create("orders")
    node.produce("orders", b"a" * 100)
    node.table.checkpoints.write_recovery_points()
    node.end_turn()
    files.flip_bit("/logs/orders-0/00000000000000000000.log", 80)
    for stop_cleanly in (True, False, True):
        node = new_node(files)
        with pytest.raises(KafkaError, match="was flushed up to"):
            node.create("orders")
        node.create("invoices")
        node.produce("invoices", b"b")
        node.table.checkpoints.write_recovery_points()
        node.end_turn()
        if stop_cleanly:
            node.table.close()


def test_an_answer_that_leads_to_an_append_is_written_in_the_same_turn() -> None:
    node = new_node()
    first, second = node.create("orders"), node.create("invoices")
    done: list[object] = []

    def then_append(_: object) -> None:
        second.staging.append_records(
            [(b"k", b"v")], now_ms=0, on_done=done.append, producer_id=-1, producer_epoch=-1, verification=UNVERIFIED
        )

    first.append_as_leader(batch_of(b"a"), acks=1, produce_version=9, now_ms=node.clock.now_ms(), on_done=then_append)
    node.table.write_staged()
    assert second.log.log_end_offset == 1


def test_retention_deletes_old_segments_and_readers_receive_the_new_start() -> None:
    node = DataPath("/logs", files=SimulatedDisk(), clock=ManualClock())
    node.create(config=TopicConfig(segment_bytes=200, retention_bytes=200))
    for _ in range(5):
        node.produce("orders", b"v" * 100)
    PartitionPasses(node.table, clock=node.clock).apply_retention()
    answer = node.fetch("orders", 0).fetched
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert answer.log_start_offset > 0
    assert node.fetch("orders", answer.log_start_offset).fetched.error_code == 0


def test_an_idle_producer_is_forgotten() -> None:
    node = new_node()
    partition = node.create()
    node.produce(
        "orders", records=batch_of(b"a", now=node.clock.now_ms, producer_id=1, producer_epoch=0, base_sequence=0)
    )
    node.clock.advance(1000)
    PartitionPasses(node.table, clock=node.clock).expire_producers(1001)
    assert len(partition.log.producers) == 1
    PartitionPasses(node.table, clock=node.clock).expire_producers(1000)
    assert len(partition.log.producers) == 0


def add(node: DataPath, topic: str = "orders", *, topic_id: TopicId | None = None, leader_epoch: int = 0) -> None:
    state = PartitionState(
        topic_id=topic_id or topic_id_of(topic),
        replicas=(BROKER,),
        in_sync_replicas=(BROKER,),
        leader=BROKER,
        leader_epoch=LeaderEpoch(leader_epoch),
        partition_epoch=0,
    )
    node.table.add(TopicPartition(topic, 0), state=state, config=TopicConfig())


def stopped_node(files: SimulatedDisk) -> None:
    """A node that has kept one record, and was stopped cleanly."""
    node = new_node(files)
    add(node)
    node.end_turn()
    node.produce("orders", b"kept")
    node.table.close()


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
    node = new_node(files)
    add(node)
    assert node.values("orders") == [b"kept"]


def test_an_unused_partition_is_there_after_many_clean_stops(files: SimulatedDisk) -> None:
    stopped_node(files)
    for _ in range(3):
        node = new_node(files)
        add(node)
        node.table.close()
    node = new_node(files)
    add(node)
    assert node.values("orders") == [b"kept"]


def test_a_sleeping_partition_takes_changes_of_state_and_settings_with_it(files: SimulatedDisk) -> None:
    stopped_node(files)
    node = new_node(files)
    add(node)
    add(node, leader_epoch=9)
    node.table.update_configs({"orders": TopicConfig(max_message_bytes=50)})
    partition = node.table.get("orders", 0)
    assert (partition.leader_epoch, partition.config.max_message_bytes) == (9, 50)


@pytest.mark.parametrize("spoil", ["remove", "flip", "append"])
def test_without_a_good_note_of_the_clean_stop_the_log_is_opened_from_its_files(
    files: SimulatedDisk, spoil: str
) -> None:
    stopped_node(files)
    if spoil == "remove":
        files.unlink(f"/logs/{CLOSED_LOGS}")
    elif spoil == "flip":
        files.flip_bit(f"/logs/{CLOSED_LOGS}", 40)
    else:
        log = Log.open("/logs/orders-0", files=files, config=TopicConfig(), now_ms=0, clean=True)
        log.append([stored_batch(1)])  # another program that knows nothing of the note
        log.close()
    node = new_node(files)
    add(node)
    node.end_turn()
    assert node.values("orders")[:1] == [b"kept"]
    assert node.table.get("orders", 0).log.log_end_offset == (2 if spoil == "append" else 1)


def test_after_a_crash_no_line_of_the_clean_stop_is_used(files: SimulatedDisk) -> None:
    stopped_node(files)
    node = new_node(files)
    add(node)
    node.produce("orders", b"more")
    node = new_node(files)
    add(node)
    node.end_turn()
    assert node.values("orders") == [b"kept", b"more"]


def test_a_sleeping_log_of_another_topic_of_the_name_is_never_used(files: SimulatedDisk) -> None:
    stopped_node(files)
    node = new_node(files)
    add(node, topic_id=OTHER_ID)
    node.end_turn()
    assert node.values("orders") == []


def test_a_sleeping_partition_can_be_deleted_and_made_again(files: SimulatedDisk) -> None:
    stopped_node(files)
    node = new_node(files)
    add(node)
    node.table.delete("orders", 0)
    add(node, topic_id=OTHER_ID)
    node.end_turn()
    assert node.table.get("orders", 0).topic_id == OTHER_ID
    assert node.values("orders") == []


def node_without_its_directory(files: SimulatedDisk, failures: NotedFailures) -> DataPath:
    """A node that starts again, and has a log in its checkpoints alone."""
    stopped_node(files)
    files.remove_tree("/logs/orders-0")
    return new_node(files, failures=failures)


def test_a_directory_that_vanished_while_the_node_was_down_is_reported(
    files: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    failures = NotedFailures()
    node = node_without_its_directory(files, failures)
    add(node)
    assert failures.all == [("lost", ORDERS)]
    assert (node.table.offline.take_vanished(), node.table.offline.take_vanished()) == ([ORDERS], [])
    node.end_turn()
    assert node.values("orders") == []
    assert "event=partition-vanished partition=orders-0" in caplog.text


def test_a_replica_that_was_removed_before_a_kill_is_not_missed_when_it_is_assigned_again(
    files: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """The directory is gone and its entries in the checkpoints are not. Found by simulation, seed 5,007,780."""
    failures = NotedFailures()
    node = node_without_its_directory(files, failures)
    assert node.table.offline.take_vanished() == []  # the metadata of the start does not name it
    add(node, topic_id=OTHER_ID)
    node.end_turn()
    assert failures.all == []
    assert "event=partition-vanished" not in caplog.text


def test_a_log_that_fails_while_it_is_used_is_reported_once() -> None:
    files, failures = SimulatedDisk(), NotedFailures()
    node = new_node(files, failures=failures)
    node.create()
    node.produce("orders", b"a")
    files.write_short_at(files.operations + 1, 10)
    files.fail_at(files.operations + 2)  # what was written cannot be cut back
    assert node.produce("orders", b"b").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.produce("orders", b"c").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert failures.all == [("stalled", ORDERS)], "the flushed records are there"


def test_a_log_that_cannot_be_written_is_stalled_until_it_can() -> None:
    files, failures = SimulatedDisk(), NotedFailures()
    node = new_node(files, failures=failures)
    node.create()
    for _ in range(2):
        files.fail_at(files.operations + 1)
        assert node.produce("orders", b"b").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert failures.all == [("stalled", ORDERS)] * 2
    assert node.produce("orders", b"c").produced.error_code == ErrorCode.NONE
    assert node.produce("orders", b"d").produced.error_code == ErrorCode.NONE
    assert failures.all == [*[("stalled", ORDERS)] * 2, ("resumed", ORDERS)]


def test_a_write_without_space_reports_a_full_disk_and_no_failed_log() -> None:
    files, failures = SimulatedDisk(), NotedFailures()
    node = new_node(files, failures=failures)
    reports: list[bool] = []
    node.table.faults.on_disk_full = lambda: reports.append(True)
    node.create()
    files.free_space = 20
    assert node.produce("orders", b"b").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    node.clock.advance(0)
    assert (reports, failures.all) == ([True], [])


def test_a_resigned_leader_leads_no_more_whatever_a_late_image_says() -> None:
    node = new_node()
    state = node.create(in_sync=(1, 2), replicas=(1, 2)).state
    assert state is not None
    led = replace(state, partition_epoch=3)
    node.table.update(ORDERS, led, TopicConfig())
    waiting: list[KafkaError | None] = []
    partition = node.table.get("orders", 0)
    partition.replica.when_high_watermark_reaches(1, waiting.append)
    left = replace(led, leader=BrokerId(2), leader_epoch=LeaderEpoch(1), partition_epoch=5)
    node.table.resign(ORDERS, left)
    (refusal,) = waiting
    assert isinstance(refusal, NotLeader)
    assert (refusal.leader, refusal.leader_epoch) == (2, 1)
    node.table.update(ORDERS, replace(led, partition_epoch=4), TopicConfig())
    assert (partition.is_leader, partition.leader_epoch) == (False, 1)
    again = replace(led, leader_epoch=LeaderEpoch(2), partition_epoch=6)
    node.table.update(ORDERS, again, TopicConfig())
    node.table.resign(ORDERS, left)
    assert (partition.is_leader, partition.leader_epoch) == (True, 2), "an old answer"


def test_a_log_that_is_found_damaged_is_lost_and_one_that_is_closed_is_not() -> None:
    failures = NotedFailures()
    node = new_node(failures=failures)
    node.create().log.condemn("a scrub has found a wrong checksum")
    node.create("other")
    node.table.close()
    assert failures.all == [("lost", ORDERS)]


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EIO, "lost"), (errno.ENOSPC, "stalled"), (errno.EMFILE, "stalled")]
)
def test_a_log_that_cannot_be_opened_is_reported(number: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Log:
        raise StorageError("cannot open the log", number)

    monkeypatch.setattr(Log, "open", fail)
    failures = NotedFailures()
    with pytest.raises(StorageError):
        new_node(failures=failures).create()
    assert failures.all == [(kind, ORDERS)]


def test_a_new_partition_that_is_used_before_it_is_durable_is_durable_with_its_first_record() -> None:
    files = SimulatedDisk(5)
    files.make_dirs("/logs")
    files.sync_dir("/")
    disk = DeferredDisk()
    node = new_node(files, disk)
    add(node)
    produced = node.produce("orders", b"first")
    works, disk.works = disk.works, []
    disk.run()
    assert produced.is_answered
    assert works, "it was not durable yet"
    files.power_cut()
    files.reboot()
    node = new_node(files)
    add(node)
    node.end_turn()
    assert node.values("orders") == [b"first"]


def test_settings_that_change_while_a_name_is_not_free_are_those_of_the_new_partition() -> None:
    disk = DeferredDisk()
    node = new_node(disk=disk)
    add(node)
    disk.run()
    node.table.delete("orders", 0)
    add(node, topic_id=OTHER_ID)
    node.table.update_configs({"orders": TopicConfig(max_message_bytes=50)})
    disk.run()
    partition = node.table.get("orders", 0)
    assert (partition.topic_id, partition.config.max_message_bytes) == (OTHER_ID, 50)


def test_a_compacted_log_that_sleeps_may_have_gaps_when_it_is_not_compacted_any_more(files: SimulatedDisk) -> None:
    """Another program has compacted the log, and no file says where."""
    stopped_node(files)
    compacted = TopicConfig(cleanup_policy=("compact",))
    log = Log.open("/logs/orders-0", files=files, config=compacted, now_ms=0, clean=True)
    log.append([stored_batch(7)])
    log.close()
    files.unlink(f"/logs/orders-0/{GAP_BOUND}")
    for starts in range(2):
        node = new_node(files)
        add(node)
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
    orders, files = TopicPartition("orders", 0), SimulatedDisk()
    both = PartitionState(
        topic_id=topic_id_of("orders"),
        replicas=(BROKER, BrokerId(2)),
        in_sync_replicas=(BROKER, BrokerId(2)),
        leader=BROKER,
        leader_epoch=LeaderEpoch(0),
        partition_epoch=0,
    )
    compacted = TopicConfig(cleanup_policy=("compact",))
    node = new_node(files)
    node.table.add(orders, state=both, config=compacted)
    node.end_turn()
    node.produce("orders", b"known to one", acks=1)
    node.table.close()
    node = new_node(files)
    node.table.add(orders, state=both, config=compacted)
    assert len(node.table.dormant) == 1
    raised = TopicConfig(min_insync_replicas=2)
    alone = replace(both, in_sync_replicas=(BROKER,), eligible_leader_replicas=(BrokerId(2),), partition_epoch=1)
    node.table.update(orders, alone, raised)
    node.table.update_configs({"orders": raised})
    partition = node.table.get("orders", 0)
    assert (partition.config, partition.log.log_end_offset, partition.high_watermark) == (raised, 1, 0)


def test_a_log_that_failed_is_looked_through_again_after_a_clean_stop(files: SimulatedDisk) -> None:
    node = new_node(files)
    add(node)
    node.end_turn()
    node.produce("orders", b"kept")
    files.write_short_at(files.operations + 1, 10)
    files.fail_at(files.operations + 2)
    assert node.produce("orders", b"torn").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.table.get("orders", 0).log.is_offline
    node.table.close()
    node = new_node(files)
    add(node)
    node.end_turn()
    assert node.values("orders") == [b"kept"]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("is_made", [True, False])
def test_a_stop_before_a_new_partition_is_durable_leaves_it_durable_or_not_there(
    seed: int, is_made: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = SimulatedDisk(seed)
    files.make_dirs("/logs")
    files.sync_dir("/")
    node = new_node(files, DeferredDisk())
    if not is_made:
        files.fail_at(files.operations + 1)
    add(node)
    node.table.close()
    files.power_cut()
    files.reboot()
    node = new_node(files)
    add(node)
    node.end_turn()
    node.produce("orders", b"first")
    again = new_node(files)  # after a crash
    add(again)
    again.end_turn()
    assert again.values("orders") == [b"first"]
    assert "event=partition-vanished" not in caplog.text


def test_a_stop_is_not_held_up_by_a_directory_that_cannot_be_renamed(files: SimulatedDisk) -> None:
    stopped_node(files)
    node = new_node(files, DeferredDisk())
    add(node)
    node.table.delete("orders", 0)
    files.fail_at(files.operations + 1)
    node.table.close()
    assert new_node(files).table.directory.was_clean


class RecreatedTopic:
    """Metadata in which another topic has the name already; this node has not acted on it yet."""

    def __init__(self, leader: BrokerId = BROKER) -> None:
        self._leader = leader

    def leader_of(self, topic: str, partition: int) -> KnownLeader | None:
        return KnownLeader(self._leader, 7)

    def topic_name(self, topic_id: TopicId) -> str | None:
        return "orders" if topic_id == topic_id_of("another") else None

    def view_refusal(self, topic: str, topic_id: bytes = b"") -> None:
        """There are no views."""


def test_a_topic_that_has_taken_a_name_does_not_get_the_partition_of_the_one_before() -> None:
    node = new_node()
    add(node)
    node.end_turn()
    node.table.leaders = RecreatedTopic()
    with pytest.raises(NotLeader):
        node.table.get_by_id(topic_id_of("another"), 0)
    assert node.table.get_by_id(topic_id_of("orders"), 0).topic_id == topic_id_of("orders")


@pytest.mark.parametrize("leader", [BROKER, NO_LEADER])
def test_a_broker_without_the_partition_never_names_itself_as_its_leader(leader: BrokerId) -> None:
    """The broker's clients would come straight back; so they look the leader up instead."""
    node = new_node()
    node.table.leaders = RecreatedTopic(leader)
    with pytest.raises(NotLeader, match="is led by no broker as far as broker 1 knows") as caught:
        node.table.get("orders", 0)
    assert (caught.value.leader, caught.value.leader_epoch) == (NO_LEADER, 7)


def two_partitions(files: SimulatedDisk) -> tuple[DataPath, Partition, Partition]:
    """A node whose partitions have a record each, and no checkpoint of them."""
    node = new_node(files)
    partitions = [node.create(topic) for topic in ("cut", "other")]
    for topic in ("cut", "other"):
        node.produce(topic, b"a")
    return node, partitions[0], partitions[1]


def test_a_recovery_point_is_lowered_without_a_look_at_other_partitions(files: SimulatedDisk) -> None:
    node, cut, _ = two_partitions(files)
    node.table.checkpoints.write_recovery_points()
    node.produce("other", b"b")
    lowered: list[KafkaError | None] = []
    node.table.checkpoints.lower_recovery_point(cut, 0, lowered.append)
    node.end_turn()
    assert lowered == [None]
    assert read_offsets(files, "/logs", RECOVERY_POINTS) == {TopicPartition("other", 0): 1}


def test_the_recovery_point_of_a_damaged_log_is_written_at_once_and_stays(files: SimulatedDisk) -> None:
    """A start looks no further back, and a kill may come within the minute between two checkpoints."""
    node, cut, _ = two_partitions(files)
    node.produce("cut", b"b")
    node.produce("cut", b"c")
    node.table.checkpoints.write_recovery_points()
    node.end_turn()
    cut.log.condemn("the batch at 1 is damaged", offset=1)
    node.end_turn()
    points = {TopicPartition("cut", 0): 1, TopicPartition("other", 0): 1}
    assert read_offsets(files, "/logs", RECOVERY_POINTS) == points
    assert cut.log.flushed_offset == 3
    node.table.checkpoints.write_recovery_points()
    node.end_turn()
    node.table.close()
    assert read_offsets(files, "/logs", RECOVERY_POINTS) == points


def test_a_log_that_is_to_begin_earlier_is_noted_as_one_before_it_is_cut(files: SimulatedDisk) -> None:
    """Recovery drops a log that ends below its noted start."""
    node, cut, _ = two_partitions(files)
    cut.delete_records(1)
    node.table.checkpoints.write_log_starts()
    node.end_turn()
    assert read_offsets(files, "/logs", LOG_STARTS) == {TopicPartition("cut", 0): 1}
    starts: list[object] = []
    node.table.checkpoints.lower_recovery_point(
        cut, 0, lambda _: starts.append(read_offsets(files, "/logs", LOG_STARTS))
    )
    node.table.checkpoints.write_log_starts()
    node.end_turn()
    assert starts == [{}]
    assert read_offsets(files, "/logs", LOG_STARTS) == {}


def test_a_log_that_is_deleted_before_its_cut_leaves_the_checkpoints(files: SimulatedDisk) -> None:
    """A checkpoint that names a log which is not there says to the next start that the disk has lost a log."""
    node, cut, _ = two_partitions(files)
    node.produce("cut", b"b")
    node.produce("cut", b"c")
    cut.delete_records(2)
    node.table.checkpoints.write_recovery_points()
    node.end_turn()
    lowered: list[KafkaError | None] = []
    node.table.checkpoints.lower_recovery_point(cut, 1, lowered.append)
    node.table.delete("cut", 0)
    node.end_turn()
    assert lowered == [None]
    assert read_offsets(files, "/logs", RECOVERY_POINTS) == {TopicPartition("other", 0): 1}
    assert read_offsets(files, "/logs", LOG_STARTS) == {}


def test_the_log_starts_of_some_are_written_without_a_look_at_the_others(files: SimulatedDisk) -> None:
    node, cut, other = two_partitions(files)
    for partition in (cut, other):
        partition.delete_records(1)
    written: list[KafkaError | None] = []
    node.table.checkpoints.write_log_starts(written.append, of=[cut])
    node.end_turn()
    assert written == [None]
    assert read_offsets(files, "/logs", LOG_STARTS) == {TopicPartition("cut", 0): 1}


def test_checkpoints_of_many_partitions_take_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_checkpoints, "AT_ONCE", 1)
    files, clock = SimulatedDisk(), TickingClock()
    node = DataPath("/logs", files=files, clock=clock)
    for number in range(20):
        node.create(partition=number)
        node.produce("orders", b"a", partition=number)
    clock.advance(100)
    node.table.checkpoints.write_high_watermarks()
    assert read_offsets(files, "/logs", HIGH_WATERMARKS) == {}
    node.table.delete("orders", 19)
    clock.advance(100)
    assert read_offsets(files, "/logs", HIGH_WATERMARKS) == {TopicPartition("orders", n): 1 for n in range(19)}
