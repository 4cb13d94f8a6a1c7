"""A log directory that cannot store: its replicas leave; with little free space producers are refused."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.partition import Partition
from tailrace.replication.verification import UNVERIFIED
from tailrace.server.partitions.log_directory_health import LogDirectoryHealth, StallCause
from tailrace.server.partitions.periodic_work import PeriodicWork, PeriodicWorkConfig
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, batch_of


class Noted:
    """The notifications to the directory's replicas, in order."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def directory_stalled(self) -> None:
        self.all.append("stalled")

    def directory_recovered(self) -> None:
        self.all.append("recovered")

    def fetch_only_in_sync(self, only: bool, /) -> None:
        self.all.append("in sync" if only else "all")


def test_a_directory_is_stalled_from_the_first_cause_to_the_last(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tailrace.server")
    noted = Noted()
    health = LogDirectoryHealth("/data", replicas=noted, fetching=noted)
    health.set_stalled(StallCause.HUNG, False)
    assert (noted.all, health.is_stalled) == ([], False)
    health.set_stalled(StallCause.FULL, True)
    health.set_stalled(StallCause.HUNG, True)
    health.set_stalled(StallCause.HUNG, True)
    health.set_stalled(StallCause.FULL, False)
    assert (noted.all, health.is_stalled) == (["in sync", "stalled"], True)
    health.set_stalled(StallCause.HUNG, False)
    assert (noted.all, health.is_stalled) == (["in sync", "stalled", "all", "recovered"], False)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in lines] == [
        "event=log-directory-stalled",
        "event=log-directory-stalled",
        "event=log-directory-recovered",
        "event=log-directory-recovered",
    ]
    assert "cause=disk-full stalled=True" in lines[2]


RESERVE = 1 << 20


def periodic_work(
    node: DataPath, reserve: int, on_short_of_space: Callable[[bool], None] = lambda _: None
) -> PeriodicWork:
    config = PeriodicWorkConfig(log_dir_reserve_bytes=reserve)
    return PeriodicWork(
        node.table, clock=node.clock, disk=node.disk, config=config, on_short_of_space=on_short_of_space
    )


@pytest.fixture
def node(files: SimulatedDisk) -> DataPath:
    node = DataPath("/logs", files=files)
    periodic_work(node, RESERVE).start()
    return node


def fill(node: DataPath, files: SimulatedDisk, free_bytes: int) -> None:
    files.free_space = free_bytes
    node.clock.advance(500)


def test_below_the_reserve_produce_is_refused_and_all_else_goes_on(node: DataPath, files: SimulatedDisk) -> None:
    partition = node.create(config=TopicConfig(segment_bytes=200, retention_bytes=200, file_delete_delay_ms=0))
    offsets = node.create("__consumer_offsets")
    for _ in range(3):
        node.produce("orders", b"x" * 100)
    fill(node, files, RESERVE - 1)
    refused = node.produce("orders", b"one more").produced
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "log.dir.reserve.bytes" in (refused.error_message or "")
    assert partition.log.log_start_offset > 0, "retention has been applied at once"
    assert node.values("orders") == [b"x" * 100] * 2
    committed: list[object] = []
    offsets.staging.append_records(
        [(b"group", b"offset")],
        now_ms=0,
        on_done=committed.append,
        producer_id=-1,
        producer_epoch=-1,
        verification=UNVERIFIED,
    )
    node.end_turn()
    assert offsets.high_watermark == 1
    node.create("later")
    assert node.produce("later", b"x").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    node.table.delete("orders", 0)
    assert node.table.find("orders", 0) is None


def test_the_refusal_of_a_full_directory_ends_when_the_reserve_and_a_tenth_more_are_free(
    node: DataPath, files: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="tailrace.server")
    partition = node.create()
    fill(node, files, RESERVE - 1)
    partition.update_config(TopicConfig(retention_ms=5))
    for free_bytes in (RESERVE, RESERVE - 1, RESERVE + RESERVE // 10 - 1):
        fill(node, files, free_bytes)
        assert node.produce("orders", b"x").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    fill(node, files, RESERVE + RESERVE // 10)
    assert node.produce("orders", b"x").produced.error_code == ErrorCode.NONE
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("tailrace")]
    assert [message.split()[0] for message in messages] == ["event=disk-reserve-reached", "event=disk-reserve-left"]


def test_a_node_that_starts_on_a_full_disk_refuses_from_the_first_moment(files: SimulatedDisk) -> None:
    node = DataPath("/logs", files=files)
    node.create()
    files.free_space = RESERVE - 1
    periodic_work(node, RESERVE).start()
    assert node.produce("orders", b"x").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_without_a_reserve_the_last_byte_may_be_written(files: SimulatedDisk) -> None:
    node = DataPath("/logs", files=files)
    node.create()
    periodic_work(node, 0).start()
    fill(node, files, 1000)
    assert node.produce("orders", b"x").produced.error_code == ErrorCode.NONE


def test_a_disk_that_runs_short_of_space_is_reported_once_and_when_there_is_space_again(files: SimulatedDisk) -> None:
    node = DataPath("/logs", files=files)
    reports: list[bool] = []
    periodic_work(node, RESERVE, reports.append).start()
    for free_bytes in (RESERVE - 1, RESERVE - 2, RESERVE + RESERVE // 10, RESERVE - 1):
        fill(node, files, free_bytes)
    assert reports == [True, False, True]


@pytest.mark.parametrize("reserve", [0, RESERVE])
def test_a_disk_that_was_filled_to_the_last_byte_is_reported_at_once(files: SimulatedDisk, reserve: int) -> None:
    node = DataPath("/logs", files=files)
    reports: list[bool] = []
    periodic_work(node, reserve, reports.append).start()
    node.create()
    files.free_space = 20
    assert node.produce("orders", b"x").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert reports == [True], "nothing has looked for free space since"
    fill(node, files, 100)
    assert reports == [True]
    fill(node, files, 4 * RESERVE)
    assert reports == [True, False]
    assert node.produce("orders", b"x").produced.error_code == ErrorCode.NONE


@pytest.mark.parametrize("reserve", [0, RESERVE])
def test_a_quota_that_is_full_on_a_disk_with_space_ends_when_a_file_can_be_written(
    files: SimulatedDisk, reserve: int
) -> None:
    """Otherwise the node would lead again every half second, until the next write."""
    node = DataPath("/logs", files=files)
    reports: list[bool] = []
    periodic_work(node, reserve, reports.append).start()
    node.create()
    for quota_bytes in (0, 1000):
        files.quota_bytes = quota_bytes
        node.produce("orders", b"x" * 2000)
        node.clock.advance(5_000)
        assert reports == [True]
    files.quota_bytes = None
    node.clock.advance(500)
    assert reports == [True, False]
    assert node.produce("orders", b"x").produced.error_code == ErrorCode.NONE
    assert not [name for name in files.list_dir("/logs") if name.endswith(".tmp")]


DELAY_MS = 100_000
KEPT = TopicConfig(segment_bytes=200, retention_ms=-1, file_delete_delay_ms=DELAY_MS)
SOON_MS = 2_000
"""Longer than a check of the disk and a round of directory work, and far below file.delete.delay.ms."""


def settle(node: DataPath) -> None:
    for _ in range(4):
        node.clock.advance(SOON_MS // 4)
        node.end_turn()


def leftovers(files: SimulatedDisk) -> list[str]:
    """The deleted directories, and the files of retired segments, that still take space."""
    found = [name for name in files.list_dir("/logs") if name.endswith("-delete")]
    for name in files.list_dir("/logs"):
        if name.rpartition("-")[2].isdecimal():
            found += [f"{name}/{each}" for each in files.list_dir(f"/logs/{name}") if each.endswith(".deleted")]
    return found


def fill_topic(node: DataPath, *, records: int = 3, **options: Any) -> Partition:
    partition = node.create(**options)
    for _ in range(records):
        node.produce("orders", b"x" * 100)
    return partition


def test_below_the_reserve_a_deleted_topic_is_removed_at_once(node: DataPath, files: SimulatedDisk) -> None:
    fill_topic(node, config=KEPT)
    fill(node, files, RESERVE - 1)
    node.table.delete("orders", 0)
    settle(node)
    assert leftovers(files) == []


def test_a_topic_that_was_deleted_before_is_removed_when_the_reserve_is_reached(
    node: DataPath, files: SimulatedDisk
) -> None:
    fill_topic(node, config=KEPT)
    node.table.delete("orders", 0)
    settle(node)
    assert len(leftovers(files)) == 1, "it stays for file.delete.delay.ms"
    fill(node, files, RESERVE - 1)
    settle(node)
    assert leftovers(files) == []


def test_with_space_a_deleted_topic_stays_for_its_delay(node: DataPath, files: SimulatedDisk) -> None:
    fill_topic(node, config=KEPT)
    fill(node, files, RESERVE - 1)
    fill(node, files, 2 * RESERVE)
    node.table.delete("orders", 0)
    node.clock.advance(DELAY_MS - 1)
    assert len(leftovers(files)) == 1
    node.clock.advance(1)
    settle(node)
    assert leftovers(files) == []


@pytest.mark.parametrize(
    "lowered",
    [replace(KEPT, retention_ms=5), replace(KEPT, retention_bytes=0)],
    ids=["retention.ms", "retention.bytes"],
)
def test_below_the_reserve_lowered_retention_frees_all_records(
    node: DataPath, files: SimulatedDisk, lowered: TopicConfig
) -> None:
    """The active segment too: no record begins the next one while producers are refused."""
    partition = fill_topic(node, config=KEPT)
    fill(node, files, RESERVE - 1)
    assert partition.log.log_start_offset == 0
    partition.update_config(lowered)
    settle(node)
    assert (partition.log.log_start_offset, partition.log.log_end_offset, partition.log.size_bytes) == (3, 3, 0)
    assert leftovers(files) == []
    fill(node, files, 2 * RESERVE)
    assert node.produce("orders", b"y").produced.base_offset == 3
    assert node.values("orders") == [b"y"]


def test_below_the_reserve_retention_frees_no_record_that_is_kept(node: DataPath, files: SimulatedDisk) -> None:
    partition = fill_topic(node, config=replace(KEPT, retention_ms=DELAY_MS))
    fill(node, files, RESERVE - 1)
    settle(node)
    assert partition.log.log_start_offset == 0


@pytest.mark.parametrize("was_short_for_ms", [0, 60_000])
def test_below_the_reserve_lowered_lags_compact_within_seconds(
    node: DataPath, files: SimulatedDisk, was_short_for_ms: int
) -> None:
    """Not only after log.cleaner.backoff.ms, 15 s: a few keys written often may have filled the disk."""
    lag = replace(KEPT, cleanup_policy=("compact",), min_compaction_lag_ms=10**12, min_cleanable_dirty_ratio=0.1)
    partition = node.create(config=lag)
    for _ in range(6):
        node.produce("orders", records=batch_of(b"key", b"x" * 100, now=node.clock.now_ms))
    node.clock.advance(4_000)  # into a rest of the cleaner
    fill(node, files, RESERVE - 1)
    node.clock.advance(was_short_for_ms)
    before = partition.log.size_bytes
    partition.update_config(replace(lag, min_compaction_lag_ms=0))
    settle(node)
    assert partition.log.size_bytes < before // 2
    assert leftovers(files) == []


@pytest.mark.parametrize("offset", [2, -1])
def test_below_the_reserve_deleted_records_are_removed_at_once(
    node: DataPath, files: SimulatedDisk, offset: int
) -> None:
    partition = fill_topic(node, config=KEPT)
    fill(node, files, RESERVE - 1)
    size_bytes = partition.log.size_bytes
    partition.delete_records(offset)
    settle(node)
    left = partition.log.size_bytes
    assert left == 0 if offset == -1 else 0 < left < size_bytes
    assert leftovers(files) == []


def test_a_log_that_sleeps_frees_its_records_too(files: SimulatedDisk) -> None:
    node = DataPath("/logs", files=files)
    partition = fill_topic(node, config=replace(KEPT, segment_bytes=1 << 30, retention_ms=5), records=1)
    for _ in range(2):
        node.produce("orders", b"x" * 600_000)
    state = partition.state
    assert state is not None
    node.table.close()
    node = DataPath("/logs", files=files, clock=ManualClock(now_ms=node.clock.now_ms() + DELAY_MS))
    work = periodic_work(node, RESERVE)
    node.table.add(partition.topic_partition, state=state, config=replace(KEPT, retention_ms=5))
    assert len(node.table.dormant) == 1
    work.start()
    fill(node, files, RESERVE - 1)
    settle(node)
    assert node.table.get("orders", 0).log.size_bytes == 0


def test_retired_segments_are_removed_at_their_deadline_and_not_by_the_next_pass(
    node: DataPath, files: SimulatedDisk
) -> None:
    delay_ms = 60_000
    partition = fill_topic(node, config=replace(KEPT, file_delete_delay_ms=delay_ms))
    partition.delete_records(2)
    node.table.segment_removal.retire(partition)
    assert leftovers(files) != []
    node.clock.advance(delay_ms - 1)
    assert leftovers(files) != []
    node.clock.advance(1)
    assert leftovers(files) == []
    assert node.values("orders") == [b"x" * 100]


def test_a_closed_table_removes_nothing_any_more(node: DataPath, files: SimulatedDisk) -> None:
    partition = fill_topic(node, config=KEPT)
    partition.delete_records(2)
    node.table.segment_removal.retire(partition)
    node.table.close()
    node.clock.advance(2 * DELAY_MS)


def test_a_full_disk_has_few_lines_about_retention_that_fails(
    node: DataPath, files: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """The active segment of each partition may go, and there is no space for the segment that would follow it."""
    for number in range(30):
        node.create(partition=number, config=replace(KEPT, retention_bytes=0))
        node.produce("orders", b"x" * 100, partition=number)
    fill(node, files, 0)
    for _ in range(4):
        settle(node)
    lines = [record.getMessage() for record in caplog.records if "event=retention-failed" in record.getMessage()]
    assert 10 <= len(lines) < 30
