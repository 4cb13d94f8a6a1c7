from dataclasses import replace

import pytest

from tailrace.model.errors import ErrorCode, KafkaError, StorageError
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.outcomes import NotLeader
from tailrace.replication.verification import UNVERIFIED
from tailrace.server.partitions.periodic_work import PartitionPasses
from tailrace.server.partitions.renamed_directories import RenamedDirectories
from tailrace.server.partitions.table import KnownLeader
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import BROKER, DataPath, batch_of, topic_id_of
from testkit.nodes.faults import lose_power
from testkit.nodes.ports import DeferredDisk, LedElsewhere, NotedFailures
from unit.server.partitions.table_nodes import ORDERS, OTHER_ID, add, added_node, code_of, new_node, started_node


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


def test_partitions_need_recovery_after_a_crash_and_not_after_a_clean_stop(files: SimulatedDisk) -> None:
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


def test_an_append_out_of_an_answer_of_a_partition_is_written_in_the_same_turn() -> None:
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


def test_the_passes_of_the_partitions_delete_old_segments_and_readers_receive_the_new_start() -> None:
    node = DataPath("/logs", files=SimulatedDisk(), clock=ManualClock())
    node.create(config=TopicConfig(segment_bytes=200, retention_bytes=200))
    for _ in range(5):
        node.produce("orders", b"v" * 100)
    PartitionPasses(node.table, clock=node.clock).apply_retention()
    answer = node.fetch("orders", 0).fetched
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert answer.log_start_offset > 0
    assert node.fetch("orders", answer.log_start_offset).fetched.error_code == 0


def test_the_passes_of_the_partitions_forget_an_idle_producer() -> None:
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


def durable_directory(seed: int) -> SimulatedDisk:
    """A disk that has the directory of the logs after a power cut too."""
    files = SimulatedDisk(seed)
    files.make_dirs("/logs")
    files.sync_dir("/")
    return files


def test_a_new_partition_that_is_used_before_it_is_durable_is_durable_with_its_first_record() -> None:
    files = durable_directory(5)
    disk = DeferredDisk()
    node = added_node(files, disk)
    produced = node.produce("orders", b"first")
    works, disk.works = disk.works, []
    disk.run()
    assert produced.is_answered
    assert works, "it was not durable yet"
    lose_power(files)
    node = started_node(files)
    assert node.values("orders") == [b"first"]


def test_settings_that_change_while_a_partitions_name_is_not_free_are_those_of_the_new_partition() -> None:
    disk = DeferredDisk()
    node = added_node(None, disk)
    disk.run()
    node.table.delete("orders", 0)
    add(node, topic_id=OTHER_ID)
    node.table.update_configs({"orders": TopicConfig(max_message_bytes=50)})
    disk.run()
    partition = node.table.get("orders", 0)
    assert (partition.topic_id, partition.config.max_message_bytes) == (OTHER_ID, 50)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("is_made", [True, False])
def test_a_stop_before_a_new_partition_is_durable_leaves_it_durable_or_not_there(
    seed: int, is_made: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = durable_directory(seed)
    node = new_node(files, DeferredDisk())
    if not is_made:
        files.fail_at(files.operations + 1)
    add(node)
    node.table.close()
    lose_power(files)
    node = started_node(files)
    node.produce("orders", b"first")
    again = new_node(files)  # after a crash
    add(again)
    again.end_turn()
    assert again.values("orders") == [b"first"]
    assert "event=partition-vanished" not in caplog.text


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
    node = started_node()
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
