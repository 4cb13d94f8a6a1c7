"""A quorum of one voter and its controller: when changes become visible, and the state after a restart."""

import logging
from functools import partial
from typing import Any

import pytest

from tailrace.metadata.commands import CreateTopics, TopicCreated, TopicRefused, TopicsCreated, TopicSpec
from tailrace.metadata.records.cluster import FeatureLevelRecord
from tailrace.metadata.records.kinds import encode_record
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.primitives import uvarint
from tailrace.protocol.records.batch import iter_batches, read_header
from tailrace.protocol.records.control import LeaderChangeMessage, control_values
from tailrace.protocol.records.record import BatchBuilder, read_records
from tailrace.raft.effects import RoleChanged
from tailrace.server.assembly.metadata_replica import SLICE_PARTITIONS
from tailrace.server.controller_link.channel import ControllerChannel
from tailrace.server.quorum.metadata_directory import MetadataDirectory
from tailrace.storage import AppendBatch, Log
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath
from testkit.nodes.ports import DeferredDisk
from testkit.quorum.controller_commands import create_topics

DATA = "/data"
LOG = "/data/__cluster_metadata-0/00000000000000000000.log"
QUORUM_STATE = "/data/__cluster_metadata-0/quorum-state"


def create(*names: str) -> CreateTopics:
    return create_topics(*(TopicSpec(name=name) for name in names))


def result_of(answers: list[Any]) -> TopicCreated | TopicRefused:
    (answer,) = answers
    assert isinstance(answer, TopicsCreated)
    return answer.results[0]


def channel_of(node: AdminPath) -> ControllerChannel:
    """The channel of commands from the broker of a node to the active controller on the same node."""
    return node.link.channel


def deferred_node() -> tuple[AdminPath, DeferredDisk]:
    """A node that is ready, on a disk that from now on flushes only in `run`."""
    disk = DeferredDisk()
    node = AdminPath(DATA, files=SimulatedDisk(), disk=disk)
    while not node.is_ready:
        disk.run()
    return node, disk


def test_an_image_is_loaded_when_it_has_the_records_below_the_first_known_high_watermark() -> None:
    files = SimulatedDisk()
    AdminPath(DATA, files=files).stop()
    disk = DeferredDisk()
    node = AdminPath(DATA, files=files, disk=disk)
    assert not node.controller.has_loaded
    while not node.is_ready:
        disk.run()
    assert node.controller.has_loaded


def test_a_decision_of_the_controller_is_not_visible_before_it_is_flushed() -> None:
    node, disk = deferred_node()
    answers = node.submit(create("orders"))
    assert not answers
    assert "orders" not in node.controller.image.topics
    assert node.table.find("orders", 0) is None
    disk.run()
    assert isinstance(result_of(answers), TopicCreated)
    assert node.table.find("orders", 0) is not None


def test_a_refusal_waits_for_what_it_was_based_on() -> None:
    """The topic that "exists" might still be lost; then the refusal would have been wrong."""
    node, disk = deferred_node()
    first, second = node.submit(create("orders")), node.submit(create("orders"))
    assert not second
    disk.run()
    assert isinstance(result_of(first), TopicCreated)
    refusal = result_of(second)
    assert isinstance(refusal, TopicRefused)
    assert refusal.error.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_refusal_that_rests_on_nothing_new_is_given_at_once() -> None:
    node, _ = deferred_node()
    assert isinstance(result_of(node.submit(create("bad name"))), TopicRefused)


def test_a_flush_may_cover_many_decisions_of_the_controller_published_in_order() -> None:
    node, disk = deferred_node()
    seen: list[str] = []
    node.controller.on_image(lambda image, delta: seen.extend(topic.name for topic in delta.created_topics))
    for name in "abc":
        node.controller.submit(create(name), partial(lambda name, _: seen.append(f"answer {name}"), name))
    disk.run()
    node.end_turn()
    disk.run()
    assert [name for name in seen if name in ("a", "b", "c")] == ["a", "b", "c"]
    assert [name for name in seen if name not in ("a", "b", "c")] == ["answer a", "answer b", "answer c"]
    assert all(seen.index(name) < seen.index(f"answer {name}") for name in "abc")


def test_a_listener_that_raises_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    """The answer, the other listeners, the portions to come and the callbacks of `when_applied` are not lost."""
    node = AdminPath(DATA, files=SimulatedDisk())
    heard: list[str] = []

    def fail(_: object, delta: object) -> None:
        raise ValueError("cannot act on it")

    node.controller.on_image(fail)
    node.controller.on_image(lambda _, delta: heard.extend(topic.name for topic in delta.created_topics))
    answers = node.create_topics("a", "b", "c", partitions=SLICE_PARTITIONS)
    assert heard == ["a", "b", "c"]
    assert isinstance(result_of(answers), TopicCreated)
    calls: list[str] = []
    node.controller.when_applied(node.controller.applied_end_offset, lambda: calls.append("acted on"))
    assert calls == ["acted on"]
    assert isinstance(result_of(node.create_topics("d")), TopicCreated)
    messages = [record.getMessage() for record in caplog.records if record.exc_info]
    assert len(messages) == 4
    assert all(line.startswith("event=metadata-listener-failed") for line in messages)


def test_a_broken_invariant_in_a_listener_ends_the_replica() -> None:
    node, disk = deferred_node()

    def fail(_: object, delta: object) -> None:
        raise AssertionError("an invariant is broken")

    node.controller.on_image(fail)
    node.submit(create("orders"))
    with pytest.raises(AssertionError, match="an invariant is broken"):
        disk.run()


def test_an_exception_in_mid_step_is_the_end_of_the_replica_and_no_line_in_a_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rest of the step would never be done, and the machine would go on as if it were."""
    node, _ = deferred_node()
    host, broken = node.quorum.host, list[Exception]()
    monkeypatch.setattr(host, "_on_broken_step", broken.append)

    def no_descriptor_left(_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(host.log, "append_as_leader", lambda *_, **__: no_descriptor_left(None))
    with pytest.raises(OSError, match="Too many open files"):
        node.submit(create("orders"))
    assert [str(fault) for fault in broken] == ["[Errno 24] Too many open files"]


def test_the_answer_to_a_creation_waits_until_the_partitions_are_durable() -> None:
    node, disk = deferred_node()
    answers: list[Any] = []
    channel_of(node).submit(create("orders"), answers.append)
    work: list[tuple[Any, Any]] = []
    disk.carry_out = lambda *asked: work.append(asked)  # type: ignore[method-assign]
    disk.run()
    assert "orders" in node.controller.image.topics
    assert not answers
    for do, on_done in work:
        do()
        on_done()
    assert isinstance(result_of(answers), TopicCreated)
    files = node.files
    assert isinstance(files, SimulatedDisk)
    files.power_cut()
    files.reboot()
    assert files.list_dir(f"{DATA}/orders-0") == ["00000000000000000000.log", "partition.metadata"]


def test_a_failed_append_changes_nothing_and_nothing_is_decided_any_more() -> None:
    files = SimulatedDisk()
    node = AdminPath(DATA, files=files)
    before = (node.controller.image, node.machine.image, node.log.end_offset)
    files.fail_at(files.operations + 1, "No space left on device")
    (answer,) = node.create_topics("orders")
    assert isinstance(answer, KafkaError)
    assert answer.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (node.controller.image, node.machine.image, node.log.end_offset) == before
    (refusal,) = node.create_topics("orders")
    assert isinstance(refusal, KafkaError)
    assert refusal.code is ErrorCode.NOT_CONTROLLER
    assert node.quorum.host.failure is not None


def test_a_flush_that_cannot_be_begun_ends_the_replica_and_what_was_flushed_before_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, disk = deferred_node()
    first = node.submit(create("orders"))
    end_of_first = node.log.end_offset
    second = node.submit(create("returns"))
    assert node.log.high_watermark < end_of_first < node.log.end_offset

    def begin_flush() -> None:
        raise StorageError("no descriptor is left")

    monkeypatch.setattr(node.log, "begin_flush", begin_flush)
    disk.run()
    node.end_turn()
    assert node.log.high_watermark == end_of_first
    assert node.quorum.host.failure is not None
    assert not node.controller.is_active
    for answers in (first, second):  # no request waits for a flush that never comes
        (refusal,) = answers
        assert isinstance(refusal, KafkaError)


def test_a_failing_callback_does_not_hold_back_the_next_and_is_logged() -> None:
    node, disk = deferred_node()

    def fail(_: object) -> None:
        raise ValueError("cannot take it")

    node.submit(create("a"))
    node.controller.submit(create("a"), fail)
    # A refusal that waits for the same flush: nothing else would bring it out again.
    answers = node.submit(create("a"))
    with pytest.raises(ValueError, match="cannot take it"):
        disk.run()
    assert not answers
    node.end_turn()
    assert isinstance(result_of(answers), TopicRefused)


def test_a_restart_is_a_replay() -> None:
    files = SimulatedDisk()
    node = AdminPath(DATA, files=files)
    node.create_topics("orders", "returns", partitions=3)
    image = node.controller.image
    node.stop()
    again = AdminPath(DATA, files=files, start=2)
    assert again.is_ready
    assert again.controller.image.topic_names == image.topic_names
    assert again.controller.image.features == image.features
    assert [again.leader_epoch("orders", number) for number in range(3)] == [2, 2, 2]
    assert again.table.get("returns", 2).leader_epoch == 2


def test_each_start_is_a_new_leader_epoch_written_down_before_anything_of_it_counts() -> None:
    files = SimulatedDisk()
    led: list[int] = []
    for start in (1, 2, 3):
        files.history.clear()
        node = AdminPath(DATA, files=files, start=start)
        led.append(node.controller.leader_epoch)
        assert b'"leaderEpoch":%d,' % led[-1] in files.read_bytes(QUORUM_STATE)
        first_sync = next(line for line in files.history if "sync" in line and line.endswith(LOG))
        renamed = [line for line in files.history if "rename" in line and "quorum-state" in line]
        assert files.history.index(renamed[-1]) < files.history.index(first_sync)
        node.stop()
    assert led == sorted(set(led))
    content = files.read_bytes(LOG)
    batches = list(iter_batches(content))
    changes = [
        (header.partition_leader_epoch, control_values(read_records(content, position))[0])
        for position, header in batches
        if header.is_control
    ]
    assert [epoch for epoch, _ in changes] == led
    assert all(isinstance(change, LeaderChangeMessage) and change.leader_id == 1 for _, change in changes)
    epochs = [header.partition_leader_epoch for _, header in batches]
    assert epochs == sorted(epochs)


def test_an_epoch_of_the_log_is_not_used_again_when_the_quorum_state_is_gone() -> None:
    files = SimulatedDisk()
    AdminPath(DATA, files=files).stop()
    node = AdminPath(DATA, files=files, start=2)
    node.stop()
    files.unlink(QUORUM_STATE)
    assert AdminPath(DATA, files=files, start=3).controller.leader_epoch > node.controller.leader_epoch


def append_value(files: SimulatedDisk, value: bytes) -> None:
    """Put one more record into the metadata log, as a newer release would."""
    directory = MetadataDirectory(DATA, files=files)
    log = Log.open(directory.path, files=files, config=TopicConfig(), now_ms=0)
    builder = BatchBuilder(base_offset=log.log_end_offset, leader_epoch=1)
    builder.append(0, None, value)
    batch = builder.build()
    log.append((AppendBatch(batch, read_header(batch)),))
    log.close()


def assert_decides_nothing(node: AdminPath, way_out: str = "newer release") -> None:
    failure = node.quorum.host.failure
    assert failure is not None
    assert (failure.code, way_out in failure.detail) == (ErrorCode.UNSUPPORTED_VERSION, True)
    assert not node.is_ready
    assert not node.controller.is_active


def test_a_node_that_meets_a_record_it_does_not_know_does_not_start() -> None:
    files = SimulatedDisk()
    AdminPath(DATA, files=files).stop()
    append_value(files, uvarint(1) + uvarint(99) + uvarint(0) + b"\0")
    assert_decides_nothing(AdminPath(DATA, files=files, start=2))


@pytest.mark.parametrize(("level", "way_out"), [(25, "raise the level there"), (99, "newer release")])
def test_a_cluster_of_another_metadata_version_is_not_served(level: int, way_out: str) -> None:
    files = SimulatedDisk()
    AdminPath(DATA, files=files).stop()
    append_value(files, encode_record(FeatureLevelRecord(name="metadata.version", feature_level=level)))
    assert_decides_nothing(AdminPath(DATA, files=files, start=2), way_out)


def test_damage_in_flushed_metadata_refuses_the_start() -> None:
    """A short log would be another log: topics would be gone and no line of a log would say so."""
    files = SimulatedDisk()
    node = AdminPath(DATA, files=files)
    node.create_topics("orders")
    node.stop()
    files.flip_bit(LOG, files.size_of(LOG) - 3)
    with pytest.raises(CorruptRecords):
        AdminPath(DATA, files=files, start=2)


def test_a_quorum_state_that_cannot_be_read_refuses_the_start() -> None:
    files = SimulatedDisk()
    AdminPath(DATA, files=files).stop()
    files.flip_bit(QUORUM_STATE, 0)
    with pytest.raises(CorruptRecords, match="quorum-state"):
        AdminPath(DATA, files=files, start=2)


def test_a_command_before_the_log_is_read_is_refused_as_retriable() -> None:
    node = AdminPath(DATA, files=SimulatedDisk(), disk=DeferredDisk())
    (answer,) = node.submit(create("orders"))
    assert isinstance(answer, KafkaError)
    assert answer.code is ErrorCode.NOT_CONTROLLER
    assert answer.code.retriable


def test_the_stop_of_the_controller_answers_its_waiting_requests() -> None:
    node, _ = deferred_node()
    answers = node.submit(create("orders"))
    node.controller.close()
    (answer,) = answers
    assert isinstance(answer, KafkaError)
    assert answer.code is ErrorCode.NOT_CONTROLLER


def test_a_replica_that_waits_for_its_peers_says_so_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Prospective, unattached, prospective ...: each round of votes changes the role twice."""
    node = AdminPath(DATA, files=SimulatedDisk())
    caplog.set_level(logging.INFO, logger="tailrace.server")
    for _ in range(50):
        for role in ("Prospective", "Unattached"):
            node.quorum.host._roles.write(RoleChanged(role, 3, -1))
    node.quorum.host._roles.write(RoleChanged("Follower", 4, 2))
    for _ in range(50):
        node.quorum.host._roles.write(RoleChanged("Unattached", 5, -1))
    node.clock.advance(60_000)
    node.quorum.host._roles.write(RoleChanged("Unattached", 6, -1))
    roles = [record.getMessage().split()[2:] for record in caplog.records if "quorum-role" in record.getMessage()]
    assert roles == [
        ["role=prospective", "epoch=3", "leader=-1"],
        ["role=unattached", "epoch=3", "leader=-1"],
        ["role=follower", "epoch=4", "leader=2"],
        ["role=unattached", "epoch=5", "leader=-1"],
        ["role=unattached", "epoch=6", "leader=-1"],
    ]
