from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tailrace.metadata.image import ChangedPartition, ClusterImage, ImageDelta, TopicImage
from tailrace.model.errors import ErrorCode, StorageError
from tailrace.model.ids import BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.proofs import NO_SECRET
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.fetch import (
    DivergingEpoch,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tailrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tailrace.protocol.records.batch import stamp
from tailrace.replication.fetch_requests import ReplicaFetchConfig
from tailrace.replication.partition import Partition
from tailrace.server.replicas.fetchers import ReplicaFetchers
from tailrace.storage import Log
from tailrace.storage.checkpoints import RECOVERY_POINTS
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import BROKER, DataPath, batch_of, topic_id_of
from testkit.nodes.ports import DeferredDisk, DeferredPeer, broker_images

TOPIC_ID = topic_id_of("orders")
ORDERS = TopicPartition("orders", 0)


def state(leader: int, epoch: int, *, replicas: Sequence[int] = (1, 2, 3), unclean_epoch: int = -1) -> PartitionState:
    ids = tuple(map(BrokerId, replicas))
    return PartitionState(
        topic_id=TOPIC_ID,
        replicas=ids,
        in_sync_replicas=ids,
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=epoch,
        unclean_epoch=unclean_epoch,
    )


def batch(base_offset: int, *values: bytes, epoch: int = 0) -> bytes:
    made = bytearray(batch_of(*values))
    stamp(made, 0, base_offset, epoch)
    return bytes(made)


class FetchPeer(DeferredPeer):
    """Leaders that answer when the test says so. Requests that end a wait are counted, and not answered."""

    def __init__(self) -> None:
        super().__init__()
        self.ended_waits: list[int] = []

    def send(
        self,
        node_id: int,
        request: Any,
        on_reply: Callable[[Any], None],
        *,
        oldest_version: int = 0,
        timeout_ms: int | None = None,
    ) -> None:
        if isinstance(request, FetchRequest) and (request.session_id, request.session_epoch) == (0, -1):
            assert (request.topics, request.forgotten_topics_data, request.max_wait_ms) == ((), (), 0)
            self.ended_waits.append(node_id)
        else:
            super().send(node_id, request, on_reply, oldest_version=oldest_version, timeout_ms=timeout_ms)


class ReplicaFetchersBench:
    """Broker 1, its partitions of one topic, and its requests to leaders."""

    def __init__(self, *states: PartitionState) -> None:
        self.disk = DeferredDisk()
        self.clock = ManualClock()
        self.node = DataPath("/logs", files=SimulatedDisk(), clock=self.clock, disk=self.disk)
        self.peer = FetchPeer()
        self.hosts = ReplicaFetchers(
            secret=NO_SECRET,
            broker_id=BROKER,
            partitions=self.node.table,
            peer=self.peer,
            clock=self.clock,
            config=ReplicaFetchConfig(),
        )
        self.states = dict(enumerate(states))
        self.answered: dict[int, PartitionData] = {}
        """The last answers, by partition."""
        for number, led in self.states.items():
            self.node.table.create(TopicPartition("orders", number), state=led, config=TopicConfig())
        self.disk.run()
        self.hosts.load(self.image)
        self.settle()

    @property
    def image(self) -> ClusterImage:
        topic = TopicImage(name="orders", topic_id=TOPIC_ID, partitions=dict(self.states))
        return ClusterImage(topics={"orders": topic}, topic_names={TOPIC_ID: "orders"}, brokers=broker_images())

    def settle(self) -> None:
        self.clock.advance(0)
        self.disk.run()
        self.clock.advance(0)

    def take(self, number: int, changed: PartitionState) -> None:
        """A change of the metadata, as a node acts on it: roles first."""
        self.states[number] = changed
        self.node.table.update(TopicPartition("orders", number), changed, TopicConfig())
        delta = ImageDelta(changed_partitions=((TopicPartition("orders", number), changed),))  # type: ignore[arg-type]
        self.hosts.on_image(self.image, delta)
        self.settle()

    def partition(self, number: int = 0) -> Partition:
        return self.node.table.get("orders", number)

    @property
    def fetches(self) -> list[tuple[int, list[FetchPartition]]]:
        """(leader, partitions) of the fetches that wait for an answer."""
        return [
            (node_id, [partition for topic in request.topics for partition in topic.partitions])
            for node_id, request, _ in self.peer.waiting
        ]

    @property
    def sessions(self) -> list[tuple[int, int, int, list[int], list[int]]]:
        """(leader, session id, epoch, partitions, forgotten partitions) of the fetches that wait for an answer."""
        return [
            (
                node_id,
                request.session_id,
                request.session_epoch,
                [partition.partition for topic in request.topics for partition in topic.partitions],
                [number for topic in request.forgotten_topics_data for number in topic.partitions],
            )
            for node_id, request, _ in self.peer.waiting
        ]

    def answer(self, *news: PartitionData, error: ErrorCode = ErrorCode.NONE, session_id: int = 0) -> None:
        """Answer the oldest fetch; if it is a full fetch, also for the partitions without news.

        `session_id` is that of the answer: a leader without sessions has none.
        """
        _, request, on_reply = self.peer.waiting.pop(0)
        given = {entry.partition_index: entry for entry in news}
        if request.session_epoch == 0:
            for topic in request.topics:
                for partition in topic.partitions:
                    given.setdefault(
                        partition.partition, self.answered.get(partition.partition, data(partition.partition))
                    )
        for number, entry in given.items():
            if not entry.error_code:
                self.answered[number] = data(
                    number, high_watermark=entry.high_watermark, log_start_offset=entry.log_start_offset
                )
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=tuple(given.values()))
        on_reply(FetchResponse(error_code=error, session_id=session_id, responses=(topic,)))
        self.clock.advance(0)


def data(number: int, records: bytes = b"", *, high_watermark: int = 0, **options: Any) -> PartitionData:
    return PartitionData(
        partition_index=number,
        high_watermark=high_watermark,
        log_start_offset=options.pop("log_start_offset", 0),
        aborted_transactions=None,
        records=records,
        **options,
    )


def test_each_leader_is_asked_for_what_it_leads() -> None:
    bench = ReplicaFetchersBench(
        state(2, 0), state(3, 4), state(2, 0), state(1, 0), state(-1, 0), state(2, 0, replicas=(2, 3))
    )
    fetches = {leader: [partition.partition for partition in wanted] for leader, wanted in bench.fetches}
    assert fetches == {2: [0, 2], 3: [1]}
    assert bench.hosts.partitions == 3


def test_a_fetch_names_its_replica_and_its_log() -> None:
    bench = ReplicaFetchersBench(state(2, 7))
    ((_, request, _),) = bench.peer.waiting
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (1, 11)
    assert (request.session_id, request.session_epoch) == (0, 0)
    bench.answer(data(0, batch(0, b"a", b"b", epoch=5) + batch(2, b"c", epoch=6), high_watermark=2))
    assert bench.fetches == [], "nothing is acknowledged before it is flushed"
    bench.settle()
    ((_, (wanted,)),) = bench.fetches
    assert (wanted.current_leader_epoch, wanted.fetch_offset, wanted.last_fetched_epoch) == (7, 3, 6)
    assert (wanted.log_start_offset, wanted.high_watermark) == (0, 2)
    assert bench.partition().high_watermark == 2
    assert bench.peer.oldest_version == 15


def test_a_new_leader_is_asked_and_the_answers_of_the_old_one_are_dropped() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    bench.take(0, state(3, 1))
    assert [leader for leader, _ in bench.fetches] == [2, 3]
    bench.answer(data(0, batch(0, b"of an old leader")))
    bench.settle()
    assert bench.partition().log.log_end_offset == 0
    bench.answer(data(0, batch(0, b"of the new one", epoch=1)))
    bench.settle()
    assert bench.partition().log.log_end_offset == 1


def test_a_new_partition_ends_the_wait_of_the_fetch_in_flight() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(-1, 0), state(-1, 0))
    for number in (1, 2):  # in one image, or in one after the other
        bench.take(number, state(2, 1))
    assert bench.peer.ended_waits == [2], "one request ends the wait, however many partitions come"
    ((_, wanted),) = bench.fetches
    assert [partition.partition for partition in wanted] == [0], "one fetch is in flight"
    bench.answer()
    bench.settle()
    ((_, wanted),) = bench.fetches
    assert {1, 2} <= {partition.partition for partition in wanted}


def test_a_new_leader_asks_no_more() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    bench.take(0, state(1, 1))
    bench.answer(data(0, batch(0, b"late")))
    bench.settle()
    assert (bench.fetches, bench.hosts.partitions, bench.partition().log.log_end_offset) == ([], 0, 0)


def test_a_former_leader_fetches_when_the_end_of_its_log_is_on_disk() -> None:
    bench = ReplicaFetchersBench(state(1, 0))
    bench.node.produce("orders", b"a", acks=1)
    assert bench.partition().log.flushed_offset == 0
    changed = state(2, 1)
    bench.states[0] = changed
    bench.node.table.update(TopicPartition("orders", 0), changed, TopicConfig())
    bench.hosts.load(bench.image)
    bench.clock.advance(0)
    assert bench.fetches == []
    bench.settle()
    ((_, (wanted,)),) = bench.fetches
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (1, 0)


def test_a_log_that_diverges_is_cut_when_its_recovery_point_is_lowered() -> None:
    bench = ReplicaFetchersBench(state(2, 3))
    bench.answer(data(0, batch(0, b"a", epoch=1) + batch(1, b"b", epoch=2) + batch(2, b"c", epoch=2)))
    bench.settle()
    bench.node.table.checkpoints.write_recovery_points()
    bench.disk.run()
    bench.answer(data(0, diverging_epoch=DivergingEpoch(epoch=2, end_offset=2)))
    assert (bench.partition().log.log_end_offset, bench.fetches) == (3, [])
    bench.settle()
    assert bench.partition().log.log_end_offset == 2
    ((_, (wanted,)),) = bench.fetches
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (2, 2)


def committed(bench: ReplicaFetchersBench, *, leader: int, epoch: int) -> None:
    """Three records in epoch 1, all of them committed as far as this replica knows; then another leader."""
    bench.answer(data(0, batch(0, b"a", epoch=1) + batch(1, b"b", epoch=1) + batch(2, b"c", epoch=1), high_watermark=3))
    bench.settle()
    assert bench.partition().high_watermark == 3
    bench.take(0, state(leader, epoch))
    bench.peer.waiting = bench.peer.waiting[-1:]


def test_committed_records_are_not_cut_for_a_leader_that_lost_them(caplog: pytest.LogCaptureFixture) -> None:
    bench = ReplicaFetchersBench(state(2, 1))
    committed(bench, leader=3, epoch=2)
    bench.answer(data(0, diverging_epoch=DivergingEpoch(epoch=1, end_offset=1)))
    bench.settle()
    log = bench.partition().log
    assert (log.log_end_offset, bench.partition().high_watermark) == (3, 3)
    assert (bench.fetches, bench.hosts.failed_partitions) == ([], 1)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    for part in (
        "event=replica-stopped partition=orders-0 leader=3 leader_epoch=2 ",
        "high_watermark=3 ",
        "cut_asked_at=1 ",
        "tailrace topics elect orders --partition 0 --unclean --force --replica 1",
    ):
        assert part in line
    bench.take(0, state(2, 3))
    ((leader, (wanted,)),) = bench.fetches
    assert (leader, wanted.fetch_offset, bench.hosts.failed_partitions) == (2, 3, 0), "another leader has it"


def test_records_lost_in_an_unclean_election_are_cut() -> None:
    bench = ReplicaFetchersBench(state(2, 1))
    committed(bench, leader=3, epoch=2)
    bench.take(0, state(3, 4, unclean_epoch=2))
    bench.peer.waiting = bench.peer.waiting[-1:]
    bench.answer(data(0, diverging_epoch=DivergingEpoch(epoch=1, end_offset=1)))
    bench.settle()
    assert (bench.partition().log.log_end_offset, bench.partition().high_watermark) == (1, 1)
    assert bench.hosts.failed_partitions == 0


def test_an_unclean_election_of_long_ago_has_lost_nothing_that_came_after_it() -> None:
    bench = ReplicaFetchersBench(state(2, 1, unclean_epoch=1))
    committed(bench, leader=3, epoch=2)
    bench.take(0, state(3, 4, unclean_epoch=1))
    bench.peer.waiting = bench.peer.waiting[-1:]
    bench.answer(data(0, diverging_epoch=DivergingEpoch(epoch=1, end_offset=1)))
    bench.settle()
    assert (bench.partition().log.log_end_offset, bench.hosts.failed_partitions) == (3, 1)


def test_an_idle_log_that_went_on_from_its_leaders_since_an_unclean_election_is_not_cut() -> None:
    """Nothing was written since, so the log alone does not tell that it belongs to the new history."""
    bench = ReplicaFetchersBench(state(2, 1))
    committed(bench, leader=3, epoch=2)
    bench.take(0, state(3, 3, unclean_epoch=3))
    bench.peer.waiting = bench.peer.waiting[-1:]
    bench.answer(data(0, high_watermark=3))
    bench.settle()
    bench.take(0, state(2, 4, unclean_epoch=3))
    bench.peer.waiting = bench.peer.waiting[-1:]
    bench.answer(data(0, diverging_epoch=DivergingEpoch(epoch=1, end_offset=1)))
    bench.settle()
    assert (bench.partition().log.log_end_offset, bench.hosts.failed_partitions) == (3, 1)


def test_a_log_that_lost_its_records_to_retention_may_begin_lower_only_after_an_unclean_election() -> None:
    bench = ReplicaFetchersBench(state(2, 3))
    bench.answer(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=40, high_watermark=50))
    bench.settle()
    bench.answer(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=8, high_watermark=30))
    bench.settle()
    assert (bench.partition().log.log_start_offset, bench.hosts.failed_partitions) == (40, 1)
    bench.take(0, state(2, 4, unclean_epoch=4))
    bench.answer(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=8, high_watermark=30))
    bench.settle()
    assert (bench.partition().log.log_start_offset, bench.hosts.failed_partitions) == (8, 0)


def test_a_committed_record_with_an_epoch_that_never_began_is_damage() -> None:
    """The follower's own log has an epoch that no leader ever began, so the loss is not the leader's."""
    bench = ReplicaFetchersBench(state(2, 1))
    committed(bench, leader=3, epoch=2)
    log = bench.partition().log
    log.epochs.assign(536870916, 2)
    bench.take(0, state(2, 3))
    bench.peer.waiting = bench.peer.waiting[-1:]
    bench.answer(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=0))
    bench.settle()
    assert (log.is_damaged, log.log_end_offset, bench.hosts.failed_partitions) == (True, 3, 1)


def test_a_replica_that_its_leader_refuses_for_ever_is_named_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    for _ in range(80):
        bench.answer(data(0, error_code=ErrorCode.KAFKA_STORAGE_ERROR))
        bench.clock.advance(1000)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 2
    assert lines[0].startswith(
        "event=replica-stalled partition=orders-0 leader=2 leader_epoch=0 error=KAFKA_STORAGE_ERROR for_ms="
    )
    assert bench.hosts.refused_partitions == 1
    bench.answer(data(0))
    bench.settle()
    assert bench.hosts.refused_partitions == 0


def test_many_replicas_that_a_leader_refuses_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    bench = ReplicaFetchersBench(*[state(2, 0)] * 30)
    for _ in range(80):
        bench.answer(*[data(number, error_code=ErrorCode.KAFKA_STORAGE_ERROR) for number in range(30)])
        bench.clock.advance(1000)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 41
    assert "event=replicas-stalled leader=2 partitions=10" in lines


def test_a_cut_that_comes_too_late_is_not_made() -> None:
    bench = ReplicaFetchersBench(state(2, 3))
    bench.answer(data(0, batch(0, b"a", epoch=1) + batch(1, b"b", epoch=2)))
    bench.settle()
    bench.answer(data(0, diverging_epoch=DivergingEpoch(epoch=1, end_offset=1)))
    bench.take(0, state(1, 4))
    assert bench.partition().log.log_end_offset == 2
    assert bench.partition().following.recovery_point == 2


def test_a_replica_that_fell_behind_its_leaders_log_starts_anew() -> None:
    bench = ReplicaFetchersBench(state(2, 3))
    out_of_range = data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=40, high_watermark=50)
    bench.answer(out_of_range)
    bench.settle()
    log = bench.partition().log
    assert (log.log_start_offset, log.log_end_offset) == (40, 40)
    ((_, (wanted,)),) = bench.fetches
    assert wanted.fetch_offset == 40
    bench.answer(data(0, batch(40, b"a", epoch=3), high_watermark=41, log_start_offset=40))
    bench.settle()
    assert bench.partition().high_watermark == 41


def test_before_a_log_is_dropped_whole_its_recovery_point_is_taken_back() -> None:
    """A power cut may leave any part of the log, or nothing, and the log start of now may not be on the disk."""
    bench = ReplicaFetchersBench(state(2, 3))
    bench.answer(data(0, batch(0, b"a", epoch=1) + batch(1, b"b", epoch=2) + batch(2, b"c", epoch=2)))
    bench.settle()
    bench.answer(data(0, high_watermark=3, log_start_offset=2))
    bench.settle()
    bench.node.table.checkpoints.write_recovery_points()
    bench.disk.run()
    recovery_points = bench.node.table.directory.checkpoint(RECOVERY_POINTS)
    assert (bench.partition().log.log_start_offset, recovery_points.get(ORDERS)) == (2, 3)
    bench.answer(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=40, high_watermark=50))
    bench.settle()
    assert (bench.partition().log.log_start_offset, recovery_points.get(ORDERS)) == (40, 0)


def test_a_log_that_starts_within_a_batch_takes_that_batch_whole() -> None:
    bench = ReplicaFetchersBench(state(2, 3))
    bench.answer(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=41, high_watermark=44))
    bench.settle()
    bench.answer(data(0, batch(40, b"a", b"b", b"c", b"d", epoch=3), high_watermark=44, log_start_offset=41))
    bench.settle()
    partition = bench.partition()
    assert (partition.log.log_start_offset, partition.log.log_end_offset, partition.high_watermark) == (41, 44, 44)
    ((_, (wanted,)),) = bench.fetches
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (44, 3)


def test_records_that_do_not_fit_pause_their_partition() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    bench.answer(data(0, batch(5, b"a")), data(1, batch(0, b"b")))
    bench.settle()
    ((_, wanted),) = bench.fetches
    assert [partition.partition for partition in wanted] == [1]
    assert bench.partition(0).log.log_end_offset == 0
    bench.answer()
    bench.clock.advance(50)
    bench.answer()
    ((_, wanted),) = bench.fetches
    assert {partition.partition for partition in wanted} == {0, 1}


def test_a_leader_that_answers_nothing_or_an_error_is_asked_again_later() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    bench.answer(error=ErrorCode.UNKNOWN_SERVER_ERROR)
    assert bench.fetches == []
    bench.clock.advance(50)
    (_, _, on_reply) = bench.peer.waiting.pop()
    on_reply(None)
    bench.clock.advance(99)
    assert bench.fetches == []
    bench.clock.advance(1)
    assert len(bench.fetches) == 1
    assert bench.hosts.failed_fetches == 2
    bench.take(0, state(3, 1))
    assert bench.hosts.failed_fetches == 2, "though no partition follows that leader any more"


def test_a_log_that_fails_is_not_fetched_until_there_is_another_leader() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    files = bench.node.files
    assert isinstance(files, SimulatedDisk)
    files.write_short_at(files.operations + 1, 10)
    files.fail_at(files.operations + 2)  # what was written cannot be cut back
    bench.answer(data(0, batch(0, b"a")))
    bench.settle()
    assert bench.hosts.failed_partitions == 1
    ((_, wanted),) = bench.fetches
    assert [partition.partition for partition in wanted] == [1]


def test_a_log_that_fails_while_its_flush_is_awaited_stops_no_other_partition() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    files = bench.node.files
    assert isinstance(files, SimulatedDisk)
    bench.answer(data(0, batch(0, b"a")), data(1, batch(0, b"b")))
    files.write_short_at(files.operations + 1, 10)
    files.fail_at(files.operations + 2)  # what was written cannot be cut back
    with pytest.raises(StorageError):
        bench.partition(0).following.append(batch(1, b"c"))
    bench.settle()
    assert bench.hosts.failed_partitions == 1
    ((_, wanted),) = bench.fetches
    assert [partition.partition for partition in wanted] == [1]


def test_a_disk_that_was_full_is_tried_again() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    files = bench.node.files
    assert isinstance(files, SimulatedDisk)
    files.fail_at(files.operations + 1)
    bench.answer(data(0, batch(0, b"a")))
    bench.settle()
    assert (bench.fetches, bench.hosts.failed_partitions) == ([], 1)
    bench.clock.advance(50)
    bench.answer(data(0, batch(0, b"a")))
    bench.settle()
    assert bench.partition().log.log_end_offset == 1


def test_a_fault_of_a_replica_that_is_tried_again_has_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    files = bench.node.files
    assert isinstance(files, SimulatedDisk)

    def fail(reason: str, times: int) -> int:
        """The lines about so many tries, 50 ms after each other."""
        caplog.clear()
        for _ in range(times):
            files.fail_at(files.operations + 1, reason)
            bench.answer(data(0, batch(0, b"a")))
            bench.settle()
            bench.clock.advance(50)
        return sum("event=replica-failed partition=" in record.getMessage() for record in caplog.records)

    assert fail("No space left on device", 30) == 1
    assert fail("Disk quota exceeded", 30) == 1
    bench.clock.advance(60_000)
    assert fail("Disk quota exceeded", 30) == 1


def test_a_disk_that_cannot_store_fetches_in_sync_replicas_only() -> None:
    in_sync, out_of_sync = state(2, 0), replace(state(2, 0), in_sync_replicas=(BrokerId(2), BrokerId(3)))
    bench = ReplicaFetchersBench(in_sync, in_sync, out_of_sync)
    bench.answer()
    bench.settle()
    bench.hosts.fetch_only_in_sync(True)
    bench.answer()
    assert [[partition.partition for partition in wanted] for _, wanted in bench.fetches] == [[0, 1]]
    bench.take(0, replace(out_of_sync, partition_epoch=1))
    bench.answer()
    assert [[partition.partition for partition in wanted] for _, wanted in bench.fetches] == [[1]]
    bench.hosts.fetch_only_in_sync(False)
    bench.settle()
    bench.answer()
    assert [{partition.partition for partition in wanted} for _, wanted in bench.fetches] == [{0, 1, 2}]


def fetched(bench: ReplicaFetchersBench) -> list[int]:
    """The partitions of the next fetch from broker 2."""
    bench.settle()
    if bench.peer.waiting:
        bench.answer()
    bench.settle()
    return sorted(partition.partition for _, wanted in bench.fetches for partition in wanted)


def test_a_replica_that_leaves_a_bad_disk_is_not_fetched_whatever_an_image_of_before_says() -> None:
    """A hung disk keeps the image from going on, and a fetch would put the replica back in sync."""
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    bench.hosts.fetch_only_in_sync(True)
    bench.hosts.pause(ORDERS, state(2, 0))
    assert fetched(bench) == [1]
    left = replace(state(2, 0), in_sync_replicas=(BrokerId(2), BrokerId(3)), partition_epoch=2)
    bench.hosts.left(ORDERS, left)
    assert fetched(bench) == [1]
    bench.take(0, replace(state(2, 0), partition_epoch=1))
    assert fetched(bench) == [1], "it is late"
    bench.take(0, left)
    assert fetched(bench) == [1]
    bench.take(0, replace(state(2, 0), partition_epoch=3))
    assert fetched(bench) == [0, 1], "it is in sync again"


def test_a_replica_that_stays_on_a_bad_disk_is_fetched_again() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    bench.hosts.fetch_only_in_sync(True)
    bench.hosts.pause(ORDERS, state(2, 0))
    assert fetched(bench) == [1]
    bench.hosts.resume(ORDERS, state(2, 0))
    assert fetched(bench) == [0, 1]


def test_when_the_disk_can_store_again_all_replicas_are_fetched_and_late_answers_change_nothing() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    bench.hosts.fetch_only_in_sync(True)
    bench.hosts.pause(ORDERS, state(2, 0))
    bench.hosts.left(TopicPartition("orders", 1), replace(state(2, 0), partition_epoch=2))
    assert fetched(bench) == []
    bench.hosts.fetch_only_in_sync(False)
    assert fetched(bench) == [0, 1]
    bench.hosts.pause(ORDERS, state(2, 0))
    bench.hosts.left(ORDERS, replace(state(2, 0), partition_epoch=2))
    assert fetched(bench) == [0, 1]


def test_a_topic_made_again_is_fetched_though_a_replica_of_the_old_one_has_left() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    topic = bench.image.topics["orders"]
    bench.hosts.fetch_only_in_sync(True)
    bench.hosts.left(ORDERS, replace(state(2, 0), partition_epoch=7))
    assert fetched(bench) == []
    bench.hosts.on_image(bench.image, ImageDelta(deleted_topics=(topic,), created_topics=(topic,)))
    assert fetched(bench) == [0]


def test_a_partition_that_is_not_here_yet_is_looked_for_again() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    bench.states[1] = state(2, 0)
    bench.hosts.load(bench.image)
    bench.settle()
    bench.answer()
    assert [[partition.partition for partition in wanted] for _, wanted in bench.fetches] == [[0]]
    bench.node.table.create(TopicPartition("orders", 1), state=bench.states[1], config=TopicConfig())
    bench.clock.advance(200)
    bench.settle()
    bench.answer()
    assert [[partition.partition for partition in wanted] for _, wanted in bench.fetches] == [[0, 1]]


def test_a_deleted_topic_is_followed_no_more() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    topic = bench.image.topics["orders"]
    bench.node.table.delete("orders", 0)
    bench.hosts.on_image(ClusterImage(), ImageDelta(deleted_topics=(topic,)))
    bench.answer(data(0, batch(0, b"late")))
    bench.settle()
    assert (bench.fetches, bench.hosts.partitions) == ([], 0)


def test_after_the_close_nothing_is_asked_or_heard() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    bench.hosts.close()
    bench.answer(data(0, batch(0, b"late")))
    bench.take(0, state(3, 1))
    bench.clock.advance(10_000)
    assert bench.fetches == []
    assert bench.partition().log.log_end_offset == 0


def test_a_log_that_is_on_disk_after_the_close_is_not_fetched() -> None:
    bench = ReplicaFetchersBench(state(1, 0))
    bench.node.produce("orders", b"a", acks=1)
    changed = state(2, 1)
    bench.states[0] = changed
    bench.node.table.update(TopicPartition("orders", 0), changed, TopicConfig())
    bench.hosts.load(bench.image)
    bench.clock.advance(0)
    bench.hosts.close()
    bench.settle()
    assert bench.fetches == []


def test_a_leader_with_sessions_receives_the_changes_alone() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0), state(2, 0))
    assert bench.sessions == [(2, 0, 0, [0, 1, 2], [])]
    bench.answer(session_id=77)
    bench.settle()
    assert bench.sessions == [(2, 77, 1, [], [])], "the high watermarks and log starts of an answer are no changes"
    bench.answer(data(1, batch(0, b"a")), session_id=77)
    bench.settle()
    assert bench.sessions == [(2, 77, 2, [1], [])]
    bench.answer(data(1, high_watermark=1), session_id=77)
    bench.settle()
    assert bench.sessions == [(2, 77, 3, [], [])]
    assert bench.partition(1).high_watermark == 1


def test_a_partition_that_is_refused_leaves_the_session_and_enters_it_again() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    bench.answer(session_id=77)
    bench.settle()
    bench.answer(data(1, error_code=ErrorCode.KAFKA_STORAGE_ERROR), session_id=77)
    assert bench.sessions == [(2, 77, 2, [], [1])]
    bench.answer(session_id=77)
    bench.clock.advance(50)
    bench.answer(session_id=77)
    assert bench.sessions == [(2, 77, 4, [1], [])]


def test_records_that_could_not_be_stored_are_sent_again() -> None:
    """The leader counts its answer as sent: only a partition that enters the session gets the same high watermark."""
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    bench.answer(session_id=77)
    bench.settle()
    bench.answer(data(0, batch(5, b"of another offset"), high_watermark=1), session_id=77)
    bench.settle()
    assert bench.sessions == [(2, 77, 2, [], [0])]
    bench.clock.advance(50)
    bench.answer(session_id=77)
    assert bench.sessions == [(2, 77, 3, [0], [])]


def test_a_lost_session_is_opened_again_at_once() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    bench.answer(session_id=77)
    bench.settle()
    bench.answer(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert bench.sessions == [(2, 0, 0, [0, 1], [])]
    bench.answer(session_id=78)
    bench.answer(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    assert bench.sessions == [(2, 78, 0, [0, 1], [])]
    bench.answer(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    assert bench.sessions == [], "a full fetch that is refused waits"
    bench.clock.advance(50)
    assert bench.sessions == [(2, 78, 0, [0, 1], [])]


def test_a_fetch_without_an_answer_begins_the_session_anew() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    bench.answer(session_id=77)
    bench.settle()
    _, _, on_reply = bench.peer.waiting.pop()
    on_reply(None)
    bench.clock.advance(50)
    assert bench.sessions == [(2, 77, 0, [0, 1], [])]


def test_the_close_ends_the_session_behind_the_fetch_under_way() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    bench.answer(session_id=77)
    bench.settle()
    bench.hosts.close()
    assert bench.sessions == [(2, 77, 1, [], []), (2, 77, -1, [], [])]
    assert bench.peer.waiting[-1][1].max_wait_ms == 0
    bench.answer(data(0, batch(0, b"late")), session_id=77)
    bench.answer()
    assert bench.sessions == []
    assert bench.partition().log.log_end_offset == 0


def test_a_session_that_is_opened_after_the_close_is_ended_too() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    bench.hosts.close()
    assert bench.sessions == [(2, 0, 0, [0], [])]
    bench.answer(session_id=77)
    assert bench.sessions == [(2, 77, -1, [], [])]


def test_the_session_ends_with_the_last_partition_of_its_leader() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    bench.answer(session_id=77)
    bench.settle()
    bench.take(0, state(3, 1))
    bench.take(1, state(3, 1))
    assert [session for session in bench.sessions if session[0] == 2] == [(2, 77, 1, [], []), (2, 77, -1, [], [])]


def test_fetches_are_logged_with_their_session_and_epoch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "tailrace.server")
    bench = ReplicaFetchersBench(state(2, 0))
    bench.answer(session_id=77)
    bench.settle()
    lines = [record.getMessage() for record in caplog.records if "replica-fetch" in record.getMessage()]
    assert lines == [
        "event=replica-fetch leader=2 session=0 epoch=0 partitions=1 forgotten=0",
        "event=replica-fetch-answered leader=2 session=77 error=0 partitions=1",
        "event=replica-fetch leader=2 session=77 epoch=1 partitions=0 forgotten=0",
    ]


def test_new_logs_are_followed_when_they_are_durable_all_together_and_no_log_is_flushed_by_itself() -> None:
    bench = ReplicaFetchersBench()
    flushed: list[Log] = []
    flush = bench.disk.flush
    bench.disk.flush = lambda log, on_done: (flushed.append(log), flush(log, on_done))  # type: ignore[method-assign,assignment,func-returns-value]
    count = 40
    bench.states = {number: state(2, 0) for number in range(count)}
    for number, led in bench.states.items():
        bench.node.table.add(TopicPartition("orders", number), state=led, config=TopicConfig())
    bench.hosts.on_image(bench.image, ImageDelta(created_topics=(bench.image.topics["orders"],)))
    bench.clock.advance(0)
    assert bench.fetches == [], "nothing is durable yet"
    bench.settle()
    (fetch,) = bench.fetches
    assert (fetch[0], len(fetch[1])) == (2, count)
    assert flushed == []


def test_a_new_leader_of_an_old_log_is_followed_while_other_logs_are_made() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    bench.answer(data(0))
    bench.settle()
    bench.peer.waiting.clear()
    bench.node.table.add(TopicPartition("orders", 1), state=state(2, 0), config=TopicConfig())
    bench.states[1] = state(2, 0)
    moved = state(3, 5)
    bench.states[0] = moved
    bench.node.table.update(TopicPartition("orders", 0), moved, TopicConfig())
    changes = (ChangedPartition(TopicPartition("orders", number), led) for number, led in bench.states.items())
    bench.hosts.on_image(bench.image, ImageDelta(changed_partitions=tuple(changes)))
    bench.clock.advance(0)
    assert [leader for leader, _ in bench.fetches] == [3]
    bench.settle()
    assert [leader for leader, _ in bench.fetches] == [3, 2]


def test_a_partition_that_is_gone_before_its_log_is_durable_is_not_followed() -> None:
    bench = ReplicaFetchersBench()
    bench.states = {0: state(2, 0)}
    image = bench.image
    bench.node.table.add(TopicPartition("orders", 0), state=state(2, 0), config=TopicConfig())
    bench.hosts.on_image(image, ImageDelta(created_topics=(image.topics["orders"],)))
    bench.clock.advance(0)
    bench.hosts.on_image(ClusterImage(), ImageDelta(deleted_topics=(image.topics["orders"],)))
    bench.settle()
    assert (bench.fetches, bench.hosts.partitions) == ([], 0)


def test_a_new_log_that_is_in_use_before_it_is_durable_needs_no_flush_of_its_own() -> None:
    """The leader's followers fetch at once; when it follows later, thousands of flushes would keep the disk busy."""
    bench = ReplicaFetchersBench()
    bench.node.table.add(ORDERS, state=state(1, 0), config=TopicConfig())
    bench.node.table.add(TopicPartition("orders", 1), state=state(1, 0), config=TopicConfig())
    used, written = (bench.node.table.get("orders", number) for number in (0, 1))
    assert used.log.flushes.has_work
    written.append_as_leader(
        batch_of(b"a"), acks=1, produce_version=9, now_ms=bench.clock.now_ms(), on_done=lambda _: None
    )
    bench.node.table.write_staged()
    bench.disk.waiting.clear()
    bench.settle()
    used.step_down(state(2, 1))
    written.step_down(state(2, 1))
    assert (used.log.flushes.has_work, written.log.flushes.has_work) == (False, True)


def list_offsets_of(bench: ReplicaFetchersBench) -> tuple[ListOffsetsRequest, Any]:
    """The one question for log starts that waits, taken away, and its `on_reply`."""
    (found,) = [entry for entry in bench.peer.waiting if isinstance(entry[1], ListOffsetsRequest)]
    bench.peer.waiting.remove(found)
    return found[1], found[2]


def starts(*found: tuple[int, int, int]) -> ListOffsetsResponse:
    """(partition, error, offset) of the topic."""
    partitions = tuple(
        ListOffsetsPartitionResponse(partition_index=number, error_code=code, offset=offset)
        for number, code, offset in found
    )
    return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="orders", partitions=partitions),))


def test_a_follower_asks_a_kafka_leader_for_its_log_start_and_begins_there() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    refused: dict[str, Any] = {
        "error_code": ErrorCode.OFFSET_OUT_OF_RANGE,
        "high_watermark": -1,
        "log_start_offset": -1,
    }
    bench.answer(*(data(number, **refused) for number in (0, 1)))
    request, on_reply = list_offsets_of(bench)
    (topic,) = request.topics
    assert (request.replica_id, topic.name) == (BROKER, "orders")
    assert [
        (partition.partition_index, partition.current_leader_epoch, partition.timestamp)
        for partition in topic.partitions
    ] == [(0, 0, -4)]
    on_reply(starts((0, ErrorCode.NONE, 70), (1, ErrorCode.NONE, 80), (9, ErrorCode.NONE, 90)))
    bench.settle()
    request, on_reply = list_offsets_of(bench)
    assert [partition.partition_index for partition in request.topics[0].partitions] == [1], "behind the first question"
    on_reply(starts((1, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)))
    bench.settle()
    assert [bench.partition(number).log.log_end_offset for number in (0, 1)] == [70, 0]


def test_a_leader_that_does_not_tell_its_log_start_is_asked_again() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    refused = data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=-1, log_start_offset=-1)
    for _ in range(3):
        bench.answer(refused)
        _, on_reply = list_offsets_of(bench)
        on_reply(None)
        bench.clock.advance(1_000)
        bench.settle()
    assert bench.partition().log.log_end_offset == 0
