"""Repairs of lost replicas of broker 1, on a disk that loses unsynced bytes; broker 2 leads, and gets the requests."""

import errno
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from simulation.replicas.node import Settings
from tailrace.metadata.image import ClusterImage, ImageDelta, TopicImage
from tailrace.model.errors import ErrorCode, KafkaError, StorageError
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.proofs import NO_SECRET
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.fetch import FetchableTopicResponse, FetchPartition, FetchResponse, PartitionData
from tailrace.protocol.records.batch import stamp
from tailrace.replication.fetch_requests import ReplicaFetchConfig
from tailrace.replication.partition import Partition
from tailrace.server.admin.config_entries import LiveSettings
from tailrace.server.partitions.damage_cut import DamageCut
from tailrace.server.replicas.fetchers import ReplicaFetchers
from tailrace.server.replicas.metadata_applier import MetadataApplier
from tailrace.server.replicas.repairs import FIRST_BACKOFF_MS, FORGOTTEN_MS, LOOK_MS, ReplicaRepairs
from tailrace.storage.checkpoints import (
    GAP_BOUND,
    HIGH_WATERMARKS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    read_offsets,
    write_gap_bound,
)
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import PowerCut, SimulatedDisk
from testkit.nodes.data_path import BROKER, DataPath, batch_of, topic_id_of
from testkit.nodes.ports import DeferredDisk
from testkit.records.batches import stored_batch, stored_marker

TOPIC_ID = topic_id_of("orders")
ORDERS = TopicPartition("orders", 0)
LOG_FILE = "/logs/orders-0/00000000000000000000.log"
DAMAGED = f"orders-0.{TOPIC_ID.hex()}.1-damaged"
OUT = PartitionState(
    topic_id=TOPIC_ID,
    replicas=(BrokerId(2), BROKER),
    in_sync_replicas=(BrokerId(2),),
    leader=BrokerId(2),
    leader_epoch=LeaderEpoch(4),
    partition_epoch=9,
)


def batch(base_offset: int, value: bytes) -> bytes:
    made = bytearray(batch_of(value))
    stamp(made, 0, base_offset, 4)
    return bytes(made)


RECORDS = [batch(number, b"value %d" % number) for number in range(3)]


class Lost:
    """Lost replicas, as `Failures` notes them; no heartbeat reports them here."""

    def __init__(self) -> None:
        self.lost_replicas: tuple[TopicPartition, ...] = ()
        self.given_up_replicas: list[TopicPartition] = []

    def lost(self, topic_partition: TopicPartition, /) -> None:
        """Note the loss; again if it was noted before."""
        self.lost_replicas = tuple(dict.fromkeys((*self.lost_replicas, topic_partition)))

    def stalled(self, topic_partition: TopicPartition, /) -> None:
        raise AssertionError(topic_partition)

    def resumed(self, topic_partition: TopicPartition, /) -> None:
        raise AssertionError(topic_partition)

    def recovered(self, topic_partition: TopicPartition, /) -> None:
        self.lost_replicas = tuple(lost for lost in self.lost_replicas if lost != topic_partition)

    def given_up(self, topic_partition: TopicPartition, /) -> None:
        self.given_up_replicas.append(topic_partition)


class RepairedBroker:
    """Broker 1 from a start on."""

    def __init__(
        self,
        files: SimulatedDisk,
        state: PartitionState = OUT,
        *,
        leader_says: ErrorCode | None = ErrorCode.NONE,
        config: TopicConfig | None = None,
    ) -> None:
        self.files = files
        self.disk = DeferredDisk()
        self.clock = ManualClock()
        self.state = state
        self.lost = Lost()
        self.waiting: list[tuple[Any, Callable[[Any], None]]] = []
        self.considered: list[Partition] = []
        self.is_deleted = False
        self.reads = 0
        self.leader_says: ErrorCode | None = leader_says
        """The error code in its answer to a read; None: it does not answer."""
        self.table = DataPath("/logs", files=files, clock=self.clock, disk=self.disk, failures=self.lost).table
        settings = LiveSettings(Settings(BROKER, config or TopicConfig()))
        self.applier = MetadataApplier(partitions=self.table, broker_id=BROKER, settings=settings)
        self.fetchers = ReplicaFetchers(
            secret=NO_SECRET,
            broker_id=BROKER,
            partitions=self.table,
            peer=self,
            clock=self.clock,
            config=ReplicaFetchConfig(),
        )
        self.repairs = ReplicaRepairs(
            broker_id=BROKER,
            partitions=self.table,
            failures=self.lost,
            opener=self.applier,
            fetchers=self.fetchers,
            keeper=self,
            peer=self,
            controller=self,
            clock=self.clock,
        )
        self.applier.load(self.image)
        self.fetchers.load(self.image)
        self.repairs.start()

    @property
    def image(self) -> ClusterImage:
        if self.is_deleted:
            return ClusterImage()
        topic = TopicImage(name="orders", topic_id=TOPIC_ID, partitions={0: self.state})
        return ClusterImage(topics={"orders": topic}, topic_names={TOPIC_ID: "orders"})

    def consider(self, partition: Partition) -> None:
        self.considered.append(partition)

    @property
    def leader_id(self) -> BrokerId:
        return BrokerId(2)

    def submit(self, command: Any, on_done: Any) -> None:
        raise AssertionError(command)

    def send(self, node_id: int, request: Any, on_reply: Callable[[Any], None], **_: Any) -> None:
        if request.replica_state.replica_id != -1:
            self.waiting.append((request, on_reply))
            return
        self.reads += 1
        (topic,) = request.topics
        (wanted,) = topic.partitions
        assert (node_id, topic.topic_id) == (self.state.leader, TOPIC_ID)
        assert wanted.current_leader_epoch == self.state.leader_epoch
        data = PartitionData(
            partition_index=0,
            error_code=self.leader_says or ErrorCode.NONE,
            high_watermark=3,
            aborted_transactions=None,
            records=b"",
        )
        topic_data = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=(data,))
        answer = None if self.leader_says is None else FetchResponse(responses=(topic_data,))
        self.clock.call_soon(lambda: on_reply(answer))

    def settle(self, ms: int = 0) -> None:
        """Let this much time pass, and the disk do its work."""
        self.clock.advance(ms)
        while self.disk.works or self.disk.waiting:
            self.disk.run()
            self.clock.advance(0)

    def take(self, **changes: Any) -> None:
        self.state = replace(self.state, partition_epoch=self.state.partition_epoch + 1, **changes)
        delta = ImageDelta(changed_partitions=((ORDERS, self.state),))  # type: ignore[arg-type]
        self.applier.on_image(self.image, delta)
        self.fetchers.on_image(self.image, delta)
        self.repairs.on_image(self.image, delta)

    def find_damage(self, what: str = "a damaged batch at 1") -> None:
        """Report the damage, as a read or the scrubber does; the leader begins a new epoch after the report."""
        self.table.get(*ORDERS).log.condemn(what)
        self.take(leader_epoch=LeaderEpoch(self.state.leader_epoch + 1))

    @property
    def leader_reads(self) -> list[FetchPartition]:
        return [partition for request, _ in self.waiting for topic in request.topics for partition in topic.partitions]

    def answer(self, *records: bytes, high_watermark: int) -> None:
        _, on_reply = self.waiting.pop()
        data = PartitionData(
            partition_index=0,
            high_watermark=high_watermark,
            log_start_offset=0,
            aborted_transactions=None,
            records=b"".join(records),
        )
        on_reply(FetchResponse(responses=(FetchableTopicResponse(topic_id=TOPIC_ID, partitions=(data,)),)))
        self.settle()

    def fetch_all(self) -> None:
        self.answer(*RECORDS, high_watermark=3)

    def write_checkpoints(self) -> None:
        self.table.checkpoints.write_recovery_points()
        self.table.checkpoints.write_high_watermarks()
        self.settle()


SMALL = TopicConfig(segment_bytes=len(RECORDS[0]), retention_ms=-1)
"""A segment per batch."""


def whole_disk(config: TopicConfig | None = None) -> SimulatedDisk:
    """Three records, all committed; then the process was killed."""
    files = SimulatedDisk(3)
    node = RepairedBroker(files, config=config)
    node.settle()
    node.fetch_all()
    node.write_checkpoints()
    return files


def damaged_disk() -> SimulatedDisk:
    files = whole_disk()
    files.flip_bit(LOG_FILE, len(RECORDS[0]) + 70)
    return files


def damaged_names(files: SimulatedDisk) -> list[str]:
    return [name for name in files.list_dir("/logs") if name.endswith("-damaged")]


def test_a_log_that_does_not_open_is_renamed_and_fetched_anew(caplog: pytest.LogCaptureFixture) -> None:
    files = damaged_disk()
    content = files.read_bytes(LOG_FILE)
    node = RepairedBroker(files)
    caplog.clear()
    caplog.set_level("INFO")
    node.settle()
    assert (node.table.has(*ORDERS), len(node.table.offline)) == (True, 0)
    (wanted,) = node.leader_reads
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (0, -1)
    assert files.read_bytes(f"/logs/{DAMAGED}/00000000000000000000.log") == content
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
def test_counted_replicas_and_leaderless_partitions_are_not_touched(state: PartitionState) -> None:
    files = damaged_disk()
    node = RepairedBroker(files, state)
    node.settle(10 * LOOK_MS)
    assert damaged_names(files) == []
    node.state = replace(OUT, partition_epoch=20)
    node.settle(LOOK_MS)
    assert damaged_names(files) == [DAMAGED]


def test_a_log_that_is_found_damaged_while_it_is_used_is_fetched_anew() -> None:
    node = RepairedBroker(whole_disk())
    node.settle()
    partition = node.table.get(*ORDERS)
    node.find_damage()
    node.settle(LOOK_MS)
    assert partition.is_closed
    assert node.table.get(*ORDERS).log.log_end_offset == 0
    assert node.leader_reads[-1].fetch_offset == 0
    node.fetch_all()
    assert node.table.get(*ORDERS).high_watermark == 3
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
        node = RepairedBroker(files, config=SMALL)
        node.settle()
        node.table.close()
    node = RepairedBroker(files, leader_says=None, config=SMALL)
    node.settle()
    files.flip_bit("/logs/orders-0/00000000000000000001.log", 70)
    node.table.get(*ORDERS).log.condemn("the batch at 1 is damaged", offset=1)
    node.settle()
    if is_clean_stop:
        node.table.close()
    again = RepairedBroker(files, leader_says=None, config=SMALL)
    again.settle()
    assert (again.lost.lost_replicas, len(again.table.offline)) == ((ORDERS,), 1)
    ends = again.table.offline.log_ends(ORDERS)
    assert ends is not None
    assert (ends.good_end_offset, ends.acknowledged_end_offset) == (1, 3)


def test_the_fetches_of_a_damaged_log_count_no_more_before_it_is_renamed() -> None:
    """The leader may propose it in sync for a fetch that left before; it forgets these when its epoch ends."""
    node = RepairedBroker(whole_disk())
    node.settle()
    node.table.get(*ORDERS).log.condemn("a damaged batch at 1")
    node.settle(10 * LOOK_MS)
    assert damaged_names(node.files) == []
    node.take(leader_epoch=LeaderEpoch(5))
    node.settle(LOOK_MS)
    assert damaged_names(node.files) == [DAMAGED]


def test_while_a_log_is_renamed_clients_get_that_it_is_offline() -> None:
    node = RepairedBroker(whole_disk())
    node.settle()
    node.find_damage()
    node.clock.advance(LOOK_MS)
    assert node.table.is_leaving(ORDERS)
    with pytest.raises(KafkaError, match="a damaged batch at 1") as caught:
        node.table.get(*ORDERS)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_topic_that_is_deleted_meanwhile_does_not_come_back() -> None:
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


def test_a_topic_that_is_deleted_while_its_log_cannot_be_moved_leaves_nothing() -> None:
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
    node = RepairedBroker(damaged_disk())
    node.settle()
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


def test_a_log_that_cannot_be_moved_stays_what_it_is_and_is_tried_again() -> None:
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
        node = RepairedBroker(files)
        node.settle()
        node.table.close()
    node = RepairedBroker(files)
    node.settle()
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
    node = RepairedBroker(files)
    node.settle()
    node.fetch_all()
    node.table.close()
    again = RepairedBroker(files)
    again.settle()
    assert damaged_names(files) == [DAMAGED]
    assert again.table.unclaimed == frozenset()
    assert again.repairs.kept_logs == node.repairs.kept_logs
    assert again.table.get(*ORDERS).log.log_end_offset == 3


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
        assert files.read_bytes(f"/logs/{DAMAGED}/00000000000000000000.log") == content
        (wanted,) = again.leader_reads
        if wanted.fetch_offset == 0:
            again.fetch_all()
        assert again.table.get(*ORDERS).log.log_end_offset == 3
    assert steps > 10


def lose_a_copy_while_it_is_measured(files: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator has just removed old files, as the line of a repair advises."""
    size_of = files.size_of
    gone: list[str] = []

    def size_of_one(path: str) -> int:
        if "-damaged/" in path and not gone:
            gone.append(path)
            raise StorageError(f"cannot stat {path}: No such file or directory", errno.ENOENT)
        return size_of(path)

    monkeypatch.setattr(files, "size_of", size_of_one)


def test_a_repair_goes_on_if_old_files_are_removed_while_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    files = damaged_disk()
    node = RepairedBroker(files)
    lose_a_copy_while_it_is_measured(files, monkeypatch)
    node.settle()
    assert (node.table.has(*ORDERS), len(node.table.offline), node.leader_reads[-1].fetch_offset) == (True, 0, 0)
    assert node.repairs.kept_logs.directories == 1


def test_after_a_repair_the_checkpoints_speak_of_the_new_log() -> None:
    files = damaged_disk()
    node = RepairedBroker(files)
    node.settle()
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
def test_nothing_is_touched_before_the_leader_has_answered_a_read(says: ErrorCode | None) -> None:
    """After the death of all nodes the image may name a leader that comes back damaged too."""
    files = damaged_disk()
    content = files.read_bytes(LOG_FILE)
    node = RepairedBroker(files, leader_says=says)
    node.settle()
    for _ in range(3):
        node.settle(LOOK_MS)
    assert node.reads == 4
    assert (files.read_bytes(LOG_FILE), damaged_names(files)) == (content, [])
    node.leader_says = ErrorCode.OFFSET_OUT_OF_RANGE
    node.settle(LOOK_MS)
    assert damaged_names(files) == [DAMAGED]


# Chosen by an administrator to lead with what is left

CHOSEN = {"leader": BROKER, "in_sync_replicas": (BROKER,), "is_recovering": True, "accepts_loss": True}
LEADERLESS = replace(OUT, leader=NO_LEADER, in_sync_replicas=())


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
    partition = node.table.get(*ORDERS)
    assert (partition.is_leader, partition.log.log_end_offset, node.lost.lost_replicas) == (True, 1, ())
    assert node.considered == [partition], "the recovery is reported at once"
    assert files.read_bytes(f"/logs/{DAMAGED}/00000000000000000000.log") == content
    assert (node.repairs.kept_logs.directories, len(node.table.offline)) == (1, 0)
    (line,) = [record.getMessage() for record in caplog.records if "event=replica-cut " in record.getMessage()]
    assert "partition=orders-0 end_offset=1 acknowledged_up_to=3 reason='" in line
    files.power_cut()
    files.reboot()
    again = RepairedBroker(files, LEADERLESS)
    assert (again.lost.lost_replicas, again.table.get(*ORDERS).log.log_end_offset) == ((), 1), "the cut is durable"


@pytest.mark.parametrize(
    "changes",
    [
        {"accepts_loss": False},
        {"accepts_loss": False, "unclean_epoch": 5},
        {"leader": NO_LEADER},
    ],
)
def test_no_other_election_cuts_anything(changes: dict[str, Any]) -> None:
    files = damaged_disk()
    content = files.read_bytes(LOG_FILE)
    node = RepairedBroker(files, LEADERLESS)
    choose(node, **changes)
    node.settle(LOOK_MS)
    assert files.read_bytes(LOG_FILE) == content
    assert (node.lost.lost_replicas, damaged_names(files)) == ((ORDERS,), [])


def test_a_cut_goes_on_if_old_files_are_removed_while_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    files = damaged_disk()
    node = RepairedBroker(files, LEADERLESS)
    node.settle()
    lose_a_copy_while_it_is_measured(files, monkeypatch)
    choose(node)
    partition = node.table.get(*ORDERS)
    assert (partition.is_leader, partition.log.log_end_offset, node.lost.lost_replicas) == (True, 1, ())


def test_damage_that_a_read_has_found_far_below_the_recovery_point_is_cut() -> None:
    """The start would not look there."""
    files = whole_disk()
    node = RepairedBroker(files, LEADERLESS)
    node.settle()
    assert node.table.get(*ORDERS).log.log_end_offset == 3
    files.flip_bit(LOG_FILE, len(RECORDS[0]) + 70)
    node.table.get(*ORDERS).log.condemn("the batch at 1 is damaged", offset=1)
    ends = node.table.offline.log_ends(ORDERS)
    assert ends is not None
    assert (ends.good_end_offset, ends.acknowledged_end_offset, bool(ends.fault)) == (1, 3, True)
    choose(node)
    partition = node.table.get(*ORDERS)
    assert (partition.is_leader, partition.log.log_end_offset, node.lost.lost_replicas) == (True, 1, ())


def test_a_replica_that_is_damaged_in_its_first_batch_leads_with_nothing() -> None:
    files = whole_disk()
    files.flip_bit(LOG_FILE, 70)
    node = RepairedBroker(files, LEADERLESS)
    node.settle()
    choose(node)
    partition = node.table.get(*ORDERS)
    assert (partition.is_leader, partition.log.log_end_offset) == (True, 0)
    assert (node.lost.lost_replicas, node.lost.given_up_replicas) == ((), [])
    files.power_cut()
    files.reboot()
    again = RepairedBroker(files, LEADERLESS)
    assert (again.lost.lost_replicas, again.table.get(*ORDERS).log.log_end_offset) == ((), 0), "the cut is durable"


def test_a_replica_whose_bound_of_gaps_is_damaged_leads_with_all_it_has() -> None:
    files = whole_disk()
    path = f"/logs/orders-0/{GAP_BOUND}"
    write_gap_bound(files, "/logs/orders-0", 2)
    files.flip_bit(path, 0)
    content = files.read_bytes(path)
    node = RepairedBroker(files, LEADERLESS)
    node.settle()
    assert node.lost.lost_replicas == (ORDERS,)
    choose(node)
    partition = node.table.get(*ORDERS)
    assert (partition.is_leader, partition.log.log_end_offset) == (True, 3)
    assert (node.lost.lost_replicas, node.lost.given_up_replicas) == ((), [])
    assert files.read_bytes(f"/logs/{DAMAGED}/{GAP_BOUND}") == content


def test_a_replica_whose_topic_cannot_be_read_is_not_opened_before_it_was_chosen() -> None:
    """The log may be another topic's. The administrator, by the choice, says that it is not."""
    files = whole_disk()
    files.flip_bit(f"/logs/orders-0/{PARTITION_METADATA}", 0)
    node = RepairedBroker(files, LEADERLESS)
    node.settle()
    node.take()
    assert (node.lost.lost_replicas, len(node.table.offline)) == ((ORDERS,), 1)
    choose(node)
    partition = node.table.get(*ORDERS)
    assert (partition.is_leader, partition.log.log_end_offset) == (True, 3)
    assert (node.lost.lost_replicas, node.lost.given_up_replicas) == ((), [])
    files.power_cut()
    files.reboot()
    again = RepairedBroker(files, LEADERLESS)
    assert (again.lost.lost_replicas, again.table.get(*ORDERS).log.log_end_offset) == ((), 3)


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
    node = RepairedBroker(files)
    node.settle()
    node.answer(*records, high_watermark=4)
    node.write_checkpoints()
    if is_cleanly_started:
        node.table.close()
    node = RepairedBroker(files, LEADERLESS)
    node.settle()
    log = node.table.get(*ORDERS).log
    aborted = log.aborted_transactions(0, 2)
    assert len(aborted) == 1
    files.flip_bit(LOG_FILE, sum(map(len, records[:3])) + 70)
    log.condemn("the batch at 3 is damaged", offset=3)
    choose(node)
    log = node.table.get(*ORDERS).log
    assert (log.log_end_offset, log.aborted_transactions(0, 2)) == (3, aborted)


def test_a_replica_that_turns_out_to_be_whole_loses_nothing() -> None:
    files = whole_disk()
    node = RepairedBroker(files, LEADERLESS)
    node.settle()
    node.table.get(*ORDERS).log.condemn("read wrong, and right the next time", offset=1)
    choose(node)
    assert node.table.get(*ORDERS).log.log_end_offset == 3


def test_a_replica_that_is_only_short_leads_as_it_is() -> None:
    node = RepairedBroker(whole_disk(), LEADERLESS)
    node.settle()
    node.lost.lost(ORDERS)
    choose(node)
    assert (node.lost.lost_replicas, node.table.get(*ORDERS).log.log_end_offset) == ((), 3)
    assert damaged_names(node.files) == []


def test_a_replica_that_cannot_be_copied_is_not_cut_and_leaves_again(caplog: pytest.LogCaptureFixture) -> None:
    files = damaged_disk()
    content = files.read_bytes(LOG_FILE)
    node = RepairedBroker(files, LEADERLESS)
    node.settle()
    node.take(leader_epoch=LeaderEpoch(5), **CHOSEN)
    files.fail_at(files.operations + 1, "No space left on device")
    node.settle(LOOK_MS)
    assert node.lost.given_up_replicas[:1] == [ORDERS]
    assert (node.lost.lost_replicas, files.read_bytes(LOG_FILE)) == ((ORDERS,), content)
    assert "event=replica-cut-failed partition=orders-0 fault=" in caplog.text


def test_a_cut_that_was_given_up_is_not_tried_again_before_the_next_choice(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert (node.lost.lost_replicas, node.table.get(*ORDERS).is_leader) == ((), True)


def test_a_partition_that_is_deleted_while_its_log_is_cut_leaves_nothing_but_the_copy() -> None:
    files = damaged_disk()
    node = RepairedBroker(files, LEADERLESS)
    node.settle()
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
        node = RepairedBroker(files, LEADERLESS)
        node.settle()
        operation += 1
        files.cut_power_at(files.operations + operation)
        try:
            choose(node)
        except PowerCut:
            moments += 1
        else:
            break
        files.reboot()
        again = RepairedBroker(files, LEADERLESS)
        again.settle()
        if again.lost.lost_replicas:
            assert files.read_bytes(LOG_FILE)[: len(content)] in (content, content[: len(RECORDS[0])])
            choose(again)
        assert again.table.get(*ORDERS).log.log_end_offset == 1
        copies = [
            files.read_bytes(f"/logs/{name}/00000000000000000000.log")
            for name in damaged_names(files)
            if files.exists(f"/logs/{name}/00000000000000000000.log")
        ]
        assert content in copies
    assert moments >= 8
