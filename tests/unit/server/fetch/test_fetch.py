"""Fetch, as a node carries it out. The rules for reads, waits and answers: tests/scenarios/fetch/test_fetch_rules."""

import gc

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from tailrace.replication.replica_progress import FollowerFetch
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, records_of, topic_id_of
from testkit.nodes.ports import DeferredDisk, LedElsewhere, RecordingConnection
from testkit.nodes.session_reader import SessionReader


@pytest.fixture
def node() -> DataPath:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create()
    return node


def values(records: object) -> list[bytes | None]:
    return [record.value for record in records_of(records)]  # type: ignore[arg-type]


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_of_fetch_reads_in_its_own_form(node: DataPath, version: int) -> None:
    node.produce("orders", b"a", b"b")
    answer = node.fetch("orders", 0, version=version).fetched
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 2, 2)
    assert values(answer.records) == [b"a", b"b"]


def test_a_fetch_at_the_end_waits_until_something_comes(node: DataPath) -> None:
    waiting = node.fetch("orders", 0, max_wait_ms=500)
    assert not waiting.is_answered
    node.produce("orders", b"a")
    assert values(waiting.fetched.records) == [b"a"]
    assert len(node.polls) == len(node.deadlines) == 0


def test_a_fetch_that_waited_in_vain_is_answered_empty_and_without_an_error(node: DataPath) -> None:
    waiting = node.fetch("orders", 0, max_wait_ms=500)
    node.clock.advance(499)
    assert not waiting.is_answered
    node.clock.advance(1)
    assert (waiting.fetched.error_code, waiting.fetched.records) == (0, b"")


def test_a_fetch_waits_for_min_bytes_and_no_longer(node: DataPath) -> None:
    waiting = node.fetch("orders", 0, max_wait_ms=500, min_bytes=400)
    appends = 0
    while not waiting.is_answered:
        node.produce("orders", b"v" * 50)
        appends += 1
    assert len(waiting.fetched.records or b"") >= 400
    assert appends == 4


def test_a_topic_in_zstd_is_read_from_version_10_on(node: DataPath) -> None:
    node.create("small", config=TopicConfig(compression_type="zstd"))
    node.produce("small", b"a" * 100)
    assert node.fetch("small", 0, version=9).fetched.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert values(node.fetch("small", 0, version=10).fetched.records) == [b"a" * 100]


def test_records_are_not_seen_before_they_are_flushed() -> None:
    disk = DeferredDisk()
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create()
    waiting = node.fetch("orders", 0, max_wait_ms=500)
    node.produce("orders", b"a", acks=1)
    assert not waiting.is_answered
    disk.run()
    node.end_turn()
    assert values(waiting.fetched.records) == [b"a"]


def test_a_fetch_does_not_wait_when_whole_batches_do_not_fill_the_limits(node: DataPath) -> None:
    """Kafka answers at once too: there a part of a batch fills the limits."""
    for _ in range(10):
        node.produce("orders", b"v" * 200)
    answer = node.fetch("orders", 0, max_wait_ms=500, min_bytes=1000, partition_max_bytes=1000).fetched
    assert 700 < len(answer.records or b"") < 1000


def test_a_fetch_does_not_wait_for_records_that_begin_in_the_next_segment(node: DataPath) -> None:
    """A read gives bytes of one segment; in Kafka such a fetch is answered at once too."""
    node.create("rolled", config=TopicConfig(segment_bytes=300))
    for _ in range(10):
        node.produce("rolled", b"v" * 200)
    assert node.table.get("rolled", 0).log.segment_count == 10
    assert values(node.fetch("rolled", 0, max_wait_ms=500, min_bytes=1000).fetched.records) == [b"v" * 200]
    assert not node.fetch("rolled", 9, max_wait_ms=500, min_bytes=1000).is_answered


def test_an_offset_above_the_high_watermark_waits_and_is_then_not_available_from_version_11_on() -> None:
    disk = DeferredDisk()
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create()
    node.produce("orders", b"a", b"b", acks=1)
    old = node.fetch("orders", 1, max_wait_ms=500, version=10)
    new = node.fetch("orders", 1, max_wait_ms=500, version=11)
    at_the_high_watermark = node.fetch("orders", 0, max_wait_ms=500, version=11)
    assert (old.is_answered, new.is_answered) == (False, False)
    node.clock.advance(500)
    assert old.fetched.error_code == at_the_high_watermark.fetched.error_code == 0
    assert new.fetched.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert new.fetched.high_watermark == 0


@pytest.mark.parametrize("max_wait_ms", [0, 500])
def test_above_the_high_watermark_a_fetch_without_min_bytes_gets_the_same_answer_at_once(max_wait_ms: int) -> None:
    node = DataPath("/logs", files=SimulatedDisk(), disk=DeferredDisk())
    node.create()
    node.produce("orders", b"a", b"b", acks=1)
    exchange = node.fetch("orders", 1, max_wait_ms=max_wait_ms, min_bytes=0, version=11)
    assert exchange.is_answered
    assert exchange.fetched.error_code == ErrorCode.OFFSET_NOT_AVAILABLE


@pytest.mark.parametrize("offset", [-1, 3, 2**40])
def test_out_of_range_is_answered_at_once_with_the_range(node: DataPath, offset: int) -> None:
    node.produce("orders", b"a", b"b")
    answer = node.fetch("orders", offset, max_wait_ms=500).fetched
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (answer.log_start_offset, answer.high_watermark) == (0, 2)


@pytest.mark.parametrize(
    ("epoch", "code"), [(-1, 0), (3, 0), (2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_the_leader_epoch_of_a_fetch_is_checked_if_there_is_one(node: DataPath, epoch: int, code: int) -> None:
    node.create(leader_epoch=3)
    assert node.fetch("orders", 0, leader_epoch=epoch).fetched.error_code == code


def test_an_unknown_topic_has_a_code_by_name_and_one_by_id(node: DataPath) -> None:
    by_name, by_id = (node.fetch("nowhere", 0, version=version, max_wait_ms=500) for version in (12, 13))
    assert by_name.fetched.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert by_id.fetched.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    ("version", "code"),
    [(4, ErrorCode.NOT_LEADER_OR_FOLLOWER), (5, ErrorCode.NOT_LEADER_OR_FOLLOWER), (6, ErrorCode.KAFKA_STORAGE_ERROR)],
)
def test_a_log_that_cannot_be_opened_has_a_code_of_the_version(version: int, code: ErrorCode) -> None:
    files = SimulatedDisk()
    node = DataPath("/logs", files=files)
    node.create()
    node.produce("orders", b"a")
    node.table.checkpoints.write_recovery_points()
    node.end_turn()
    files.flip_bit("/logs/orders-0/00000000000000000000.log", 65)
    node = DataPath("/logs", files=files)
    with pytest.raises(KafkaError):
        node.create()
    assert node.fetch("orders", 0, version=version).fetched.error_code == code


def test_from_version_12_on_the_new_leader_is_named(node: DataPath) -> None:
    node.table.leaders = LedElsewhere({topic_id_of("far"): "far"})
    answer = node.fetch("far", 0, version=12).fetched
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (2, 5)


def test_replicas_that_this_leader_does_not_know_are_refused(node: DataPath) -> None:
    old = node.fetch("orders", 0, version=14, replica_id=2).fetched
    new = node.fetch("orders", 0, version=15, leader_epoch=0, replica_state=ReplicaState(replica_id=2)).fetched
    assert old.error_code == new.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(("session_id", "session_epoch"), [(0, -1), (77, -1)])
def test_a_full_fetch_of_the_final_epoch_is_answered_without_a_session(
    node: DataPath, session_id: int, session_epoch: int
) -> None:
    response = node.fetch("orders", 0, session_id=session_id, session_epoch=session_epoch).response
    assert (response.error_code, response.session_id) == (0, 0)


def test_a_fetch_of_an_unknown_session_is_refused(node: DataPath) -> None:
    response = node.fetch("orders", 0, session_id=77, session_epoch=1, max_wait_ms=500).response
    assert (response.error_code, response.session_id) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
    assert response.responses == ()


def test_a_reader_whose_log_diverges_gets_the_point(node: DataPath) -> None:
    node.produce("orders", b"a", b"b")
    node.create(leader_epoch=4)
    node.produce("orders", b"c")

    def answer(last_fetched_epoch: int, offset: int) -> FetchResponse:
        wanted = FetchPartition(
            partition=0, fetch_offset=offset, last_fetched_epoch=last_fetched_epoch, partition_max_bytes=1000
        )
        topic = FetchTopic(topic="orders", partitions=(wanted,))
        response: FetchResponse = node.send(FetchRequest(max_wait_ms=0, min_bytes=1, topics=(topic,)), 12).response
        return response

    diverged = answer(last_fetched_epoch=2, offset=3).responses[0].partitions[0]
    assert (diverged.diverging_epoch.epoch, diverged.diverging_epoch.end_offset) == (0, 2)
    assert diverged.records == b""
    agreed = answer(last_fetched_epoch=0, offset=2).responses[0].partitions[0]
    assert agreed.diverging_epoch.epoch == -1
    assert values(agreed.records) == [b"c"]


def test_a_fetch_of_nothing_is_answered(node: DataPath) -> None:
    assert node.send(FetchRequest(max_wait_ms=500, min_bytes=1, topics=()), 12).response.responses == ()


def test_a_fetch_whose_connection_has_gone_reads_nothing_more(node: DataPath) -> None:
    connection = RecordingConnection()
    node.fetch("orders", 0, max_wait_ms=500, connection=connection)
    connection.hang_up()
    node.produce("orders", b"a")
    node.clock.advance(500)
    assert connection.answers == {}
    assert len(node.polls) == 0


def test_a_waiting_fetch_gets_the_committed_part_of_the_writes_of_one_turn(node: DataPath) -> None:
    partition = node.create("copied", in_sync=(1, 2), replicas=(1, 2))
    waiting = node.fetch("copied", 0, max_wait_ms=500)
    node.produce("copied", b"a", acks=1, same_turn=True)
    node.produce("copied", b"b", acks=1)
    partition.in_sync.take_fetch(BrokerId(2), FollowerFetch(1))
    node.end_turn()
    assert values(waiting.fetched.records) == [b"a"]


def test_a_waiting_fetch_gets_records_from_before_the_start_when_they_are_committed() -> None:
    files = SimulatedDisk()
    before = DataPath("/logs", files=files)
    before.create(in_sync=(1, 2), replicas=(1, 2))
    before.produce("orders", b"a", acks=1)
    before.table.close()
    node = DataPath("/logs", files=files)
    partition = node.create(in_sync=(1, 2), replicas=(1, 2))
    waiting = node.fetch("orders", 0, max_wait_ms=500)
    assert not waiting.is_answered
    partition.in_sync.take_fetch(BrokerId(2), FollowerFetch(1))
    node.end_turn()
    assert values(waiting.fetched.records) == [b"a"]


def test_a_waiting_fetch_is_answered_at_once_after_a_new_leader_epoch(node: DataPath) -> None:
    waiting = node.fetch("orders", 0, max_wait_ms=500, leader_epoch=0)
    node.create(leader_epoch=1)
    node.end_turn()
    assert waiting.fetched.error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("byte", [0, 11, 15], ids=["offset", "length", "leader epoch"])
def test_changed_bytes_are_a_storage_error_and_never_served(byte: int) -> None:
    """No checksum of the client's covers the bytes. KAFKA_STORAGE_ERROR sends the client to another replica, if any."""
    files = SimulatedDisk()
    node = DataPath("/logs", files=files)
    node.create()
    for value in (b"a", b"b", b"c"):
        node.produce("orders", value)
    path = f"/logs/orders-0/{0:020d}.log"
    files.flip_bit(path, files.size_of(path) // 3 + byte, 4)
    answer = node.fetch("orders", 0).fetched
    assert (answer.error_code, answer.records or b"") == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
    assert node.table.offline_replica("orders", 0) is not None
    assert node.fetch("orders", 2).fetched.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.produce("orders", b"d").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("version", [12, 17])
def test_a_fetch_leaves_no_cycle_for_the_garbage_collector(version: int) -> None:
    disk = DeferredDisk()
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create()
    node.produce("orders", b"a", acks=1)

    def fetch() -> None:
        assert node.fetch("orders", 0, version=version).fetched.error_code == ErrorCode.NONE
        assert node.fetch("orders", 1, version=version).fetched.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID
        assert node.fetch("bills", 0, version=version).fetched.error_code == missing
        reader = SessionReader(node, version=version, topic="bills")
        reader.open({0: 0})
        reader.next()

    def garbage() -> int:
        fetch()
        return gc.collect()

    garbage()  # codecs are compiled
    # Threads of others and finalizers make cycles too, now and then; a request that makes one makes it every time.
    assert 0 in (garbage() for _ in range(5))
