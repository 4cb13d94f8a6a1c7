import pytest

from tailrace.metadata.image import ChangedPartition, ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import Log
from testkit.nodes.data_path import batch_of
from unit.server.replicas.fetchers_bench import ORDERS, ReplicaFetchersBench, batch, data, state


def test_the_replica_fetchers_ask_each_leader_for_what_it_leads() -> None:
    bench = ReplicaFetchersBench(
        state(2, 0), state(3, 4), state(2, 0), state(1, 0), state(-1, 0), state(2, 0, replicas=(2, 3))
    )
    fetches = {leader: [partition.partition for partition in wanted] for leader, wanted in bench.fetches}
    assert fetches == {2: [0, 2], 3: [1]}
    assert bench.hosts.partitions == 3


def test_a_replica_fetch_names_its_replica_and_its_log() -> None:
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


def test_the_replica_fetchers_ask_a_new_leader_and_drop_the_answers_of_the_old_leader() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    bench.take(0, state(3, 1))
    assert [leader for leader, _ in bench.fetches] == [2, 3]
    bench.take_answer(data(0, batch(0, b"of an old leader")))
    assert bench.partition().log.log_end_offset == 0
    bench.take_answer(data(0, batch(0, b"of the new one", epoch=1)))
    assert bench.partition().log.log_end_offset == 1


def test_a_new_partition_ends_the_wait_of_the_replica_fetch_in_flight() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(-1, 0), state(-1, 0))
    for number in (1, 2):  # in one image, or in one after the other
        bench.take(number, state(2, 1))
    assert bench.peer.ended_waits == [2], "one request ends the wait, however many partitions come"
    assert bench.fetched == [0], "one fetch is in flight"
    bench.take_answer()
    assert set(bench.fetched) >= {1, 2}


def test_a_replica_that_becomes_the_leader_fetches_no_more() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    bench.take(0, state(1, 1))
    bench.take_answer(data(0, batch(0, b"late")))
    assert (bench.fetches, bench.hosts.partitions, bench.partition().log.log_end_offset) == ([], 0, 0)


def test_a_former_leader_fetches_when_the_end_of_its_log_is_on_disk() -> None:
    bench = ReplicaFetchersBench(state(1, 0))
    bench.node.produce("orders", b"a", acks=1)
    assert bench.partition().log.flushed_offset == 0
    bench.load(state(2, 1))
    assert bench.fetches == []
    bench.settle()
    ((_, (wanted,)),) = bench.fetches
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (1, 0)


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
    bench.take_answer(data(0))
    assert bench.hosts.refused_partitions == 0


def test_many_replicas_that_a_leader_refuses_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    bench = ReplicaFetchersBench(*[state(2, 0)] * 30)
    for _ in range(80):
        bench.answer(*[data(number, error_code=ErrorCode.KAFKA_STORAGE_ERROR) for number in range(30)])
        bench.clock.advance(1000)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 41
    assert "event=replicas-stalled leader=2 partitions=10" in lines


def test_records_that_do_not_fit_pause_their_replica() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    bench.take_answer(data(0, batch(5, b"a")), data(1, batch(0, b"b")))
    assert bench.fetched == [1]
    assert bench.partition(0).log.log_end_offset == 0
    bench.answer()
    bench.clock.advance(50)
    bench.answer()
    assert set(bench.fetched) == {0, 1}


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


def test_the_replica_fetchers_look_again_for_a_partition_that_is_not_here_yet() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    bench.states[1] = state(2, 0)
    bench.hosts.load(bench.image)
    bench.settle()
    bench.answer()
    assert bench.fetched == [0]
    bench.node.table.create(TopicPartition("orders", 1), state=bench.states[1], config=TopicConfig())
    bench.clock.advance(200)
    bench.settle()
    bench.answer()
    assert bench.fetched == [0, 1]


def test_a_deleted_topic_is_followed_no_more() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    topic = bench.image.topics["orders"]
    bench.node.table.delete("orders", 0)
    bench.hosts.on_image(ClusterImage(), ImageDelta(deleted_topics=(topic,)))
    bench.take_answer(data(0, batch(0, b"late")))
    assert (bench.fetches, bench.hosts.partitions) == ([], 0)


def test_closed_replica_fetchers_ask_and_hear_nothing() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    bench.hosts.close()
    bench.answer(data(0, batch(0, b"late")))
    bench.take(0, state(3, 1))
    bench.clock.advance(10_000)
    assert bench.fetches == []
    assert bench.partition().log.log_end_offset == 0


def test_a_log_that_is_on_disk_after_the_close_of_the_replica_fetchers_is_not_fetched() -> None:
    bench = ReplicaFetchersBench(state(1, 0))
    bench.node.produce("orders", b"a", acks=1)
    bench.load(state(2, 1))
    bench.hosts.close()
    bench.settle()
    assert bench.fetches == []


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
    bench.take_answer(data(0))
    bench.peer.waiting.clear()
    bench.node.table.add(TopicPartition("orders", 1), state=state(2, 0), config=TopicConfig())
    bench.states[1] = state(2, 0)
    moved = state(3, 5)
    bench.states[0] = moved
    bench.node.table.update(ORDERS, moved, TopicConfig())
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
    bench.node.table.add(ORDERS, state=state(2, 0), config=TopicConfig())
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
