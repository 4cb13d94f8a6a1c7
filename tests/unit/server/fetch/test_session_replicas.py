"""Fetch sessions of followers, and of consumers that may read from them (KIP-227 with KIP-392)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tailrace.fetch_session.session import UNPROVEN
from tailrace.metadata.image import ImageDelta
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.model.proofs import NO_SECRET, id_of_secret
from tailrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from tailrace.replication.fetch_requests import ReplicaFetchConfig, SessionFetches
from tailrace.replication.partition import Partition
from tailrace.server.fetch.follower_readers import FetchingFollower
from tailrace.server.fetch.sessions import IDLE_ANSWER_MS
from testkit.nodes.data_path import Exchange, topic_id_of
from testkit.nodes.ports import RecordingConnection
from testkit.nodes.replica_reads import EPOCHS, LEADER_EPOCH, FollowingBroker, LeadingBroker
from testkit.nodes.session_reader import SessionReader, answers

SECRET = b"of the follower."


class SessionFollower:
    """A follower with a session, which says what a test has it say."""

    def __init__(self, broker: LeadingBroker, replica: int, *, version: int = 17) -> None:
        self.broker = broker
        self.replica = replica
        self.version = version
        self.broker_epoch = EPOCHS[replica]
        self.secret = NO_SECRET
        self.session_id = 0
        self.epoch = 0
        self.connection = RecordingConnection()

    def send(self, offset: int | None = None, *, max_wait_ms: int = 0, log_start_offset: int = 0) -> Exchange:
        wanted = FetchPartition(
            partition=0,
            fetch_offset=offset or 0,
            current_leader_epoch=LEADER_EPOCH,
            log_start_offset=log_start_offset,
            partition_max_bytes=1 << 20,
        )
        named = () if offset is None else (FetchTopic(topic_id=topic_id_of("orders"), partitions=(wanted,)),)
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self.replica, replica_epoch=self.broker_epoch),
            secret=self.secret,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=named,
        )
        self.epoch += 1
        return self.broker.node.send(request, self.version, connection=self.connection)

    def forget(self) -> None:
        """Take the partition out of the session, and another partition in: an empty session would end."""
        other = FetchPartition(partition=9, fetch_offset=0, current_leader_epoch=0, partition_max_bytes=1)
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self.replica, replica_epoch=self.broker_epoch),
            secret=self.secret,
            max_wait_ms=0,
            min_bytes=1,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=(FetchTopic(topic_id=topic_id_of("orders"), partitions=(other,)),),
            forgotten_topics_data=(ForgottenTopic(topic_id=topic_id_of("orders"), partitions=(0,)),),
        )
        self.epoch += 1
        self.broker.node.send(request, self.version, connection=self.connection)

    def end_wait(self) -> Exchange:
        """Ask for nothing, outside the session, behind a fetch that may wait."""
        request = SessionFetches(broker_id=BrokerId(self.replica), config=ReplicaFetchConfig()).end_wait(
            broker_epoch=self.broker_epoch
        )
        return self.broker.node.send(request, self.version, connection=self.connection)

    def open(self, offset: int = 0, **options: Any) -> list[PartitionData]:
        response = self.send(offset, **options).response
        assert response.session_id > 0
        self.session_id, self.epoch = response.session_id, 1
        return answers(response)

    def next(self, offset: int | None = None, **options: Any) -> list[PartitionData]:
        return answers(self.send(offset, **options).response)


def consumer(broker: LeadingBroker, *, version: int = 17) -> SessionReader:
    return SessionReader(broker.node, version=version)


def test_the_bytes_for_a_follower_count_when_its_answer_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a slice's bytes would hold back the next slice: a throttle holds back the next answer (KIP-73)."""
    monkeypatch.setattr("tailrace.server.fetch.reading._SLICE", 1)
    broker = LeadingBroker()
    broker.commit(b"a")
    follower = SessionFollower(broker, 2)
    follower.open(1)
    follower.forget()
    sent: list[int] = []

    def mark_sent(reader: FetchingFollower, given: Sequence[tuple[Partition, int]], *, has_session: bool) -> None:
        sent.append(sum(size_bytes for _, size_bytes in given))

    monkeypatch.setattr(FetchingFollower, "mark_sent", mark_sent)
    named = follower.next(0)
    assert [data.error_code for data in named] == [ErrorCode.NONE], "the other partition is known to be missing"
    assert sent == [len(named[0].records or b"")]


def test_the_first_fetch_of_a_followers_session_does_not_wait() -> None:
    """KIP-392: 'the first request in a fetch session will not block on the leader'."""
    follower = SessionFollower(LeadingBroker(), 2)
    assert len(follower.open(max_wait_ms=500)) == 1


def test_without_a_slot_a_followers_fetch_waits_as_any() -> None:
    broker = LeadingBroker(settings={"max.incremental.fetch.session.cache.slots": "0"})
    follower = SessionFollower(broker, 2)
    assert follower.send(0, max_wait_ms=500).is_answered  # it does not know the high watermark
    follower.epoch = 0
    waiting = follower.send(0, max_wait_ms=500)
    assert not waiting.is_answered
    broker.node.clock.advance(500)
    assert waiting.response.session_id == 0


def test_a_followers_session_is_privileged_in_its_present_registration_alone() -> None:
    broker = LeadingBroker()
    true, late = SessionFollower(broker, 2), SessionFollower(broker, 3)
    late.broker_epoch -= 1
    true.open()
    (refused,) = late.open()
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    sessions = broker.node.broker.fetch_sessions.cache.sessions()
    assert {session.owner.replica_id: session.is_privileged for session in sessions} == {2: True, 3: False}


def test_a_client_that_imitates_a_follower_gets_no_privilege_and_not_its_session() -> None:
    broker = LeadingBroker()
    broker.change_broker(2, incarnation_id=id_of_secret(SECRET))
    true, imitator = SessionFollower(broker, 2), SessionFollower(broker, 2)
    true.secret = SECRET
    true.open()
    imitator.open()
    sessions = broker.node.broker.fetch_sessions.cache.sessions()
    assert {session.owner.replica_id: session.is_privileged for session in sessions} == {2: True, UNPROVEN: False}
    broker.produce(b"a")
    imitator.session_id, imitator.epoch = true.session_id, true.epoch
    assert imitator.send(1).response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    imitator.epoch = -1  # a full fetch that names a session closes it
    imitator.send(1)
    assert broker.partition.high_watermark == 0
    assert true.send(1).response.error_code == ErrorCode.NONE, "its session goes on"


def opened() -> tuple[LeadingBroker, SessionFollower, SessionFollower]:
    """A broker, and both followers with a session."""
    broker = LeadingBroker()
    two, three = SessionFollower(broker, 2), SessionFollower(broker, 3)
    two.open()
    three.open()
    return broker, two, three


def both_store_a_record(broker: LeadingBroker, two: SessionFollower, three: SessionFollower, offset: int = 0) -> None:
    """Both followers get the record at this offset, and have not fetched since."""
    broker.produce(b"a")
    two.next(offset)
    three.next(offset)


def test_a_follower_that_knows_everything_waits() -> None:
    broker = LeadingBroker()
    follower = SessionFollower(broker, 2)
    follower.open()
    assert not follower.send(max_wait_ms=500).is_answered


def test_a_stale_high_watermark_goes_out_at_once_and_is_known_when_the_next_fetch_comes() -> None:
    """KIP-392: 'The leader will respond to a fetch immediately if the follower has a stale high watermark.'"""
    broker, two, three = opened()
    both_store_a_record(broker, two, three)
    waiting = two.send(1, max_wait_ms=500)
    assert not waiting.is_answered
    assert broker.partition.high_watermark == 0
    three.send(1)
    assert broker.partition.high_watermark == 1
    (data,) = answers(waiting.response)
    assert (data.high_watermark, data.records) == (1, b"")
    assert broker.partition.in_sync.serving(1) == []
    assert not two.send(max_wait_ms=500).is_answered
    assert [replica for replica, _ in broker.partition.in_sync.serving(1)] == [2]


def test_a_high_watermark_in_an_answer_that_was_lost_is_acknowledged_by_no_fetch() -> None:
    """A fetch that names a session to begin another one says that the last answer of that one did not come."""
    broker, two, three = opened()
    both_store_a_record(broker, two, three)
    two.next(1)
    three.next(1)
    (data,) = two.next()
    assert data.high_watermark == 1
    assert broker.partition.in_sync.serving(1) == []
    two.epoch = 0  # that answer has not come
    two.open(1)
    assert broker.partition.in_sync.serving(1) == []
    two.next()
    assert [replica for replica, _ in broker.partition.in_sync.serving(1)] == [2]


def test_a_high_watermark_in_the_first_answer_of_a_session_is_acknowledged_in_that_session_alone() -> None:
    broker = LeadingBroker()
    end = broker.commit(b"a")
    for replica in (2, 3):
        broker.follow(replica, 0, high_watermark=0)  # both have lost it again
    follower = SessionFollower(broker, 2)
    assert follower.send(end).response.session_id > 0
    follower.epoch = 0  # that answer has not come, and its session is not known
    follower.open(end)
    assert broker.partition.in_sync.serving(end) == []
    follower.next()
    assert [replica for replica, _ in broker.partition.in_sync.serving(end)] == [2]


def test_answers_with_nothing_but_high_watermarks_keep_a_distance() -> None:
    broker, two, three = opened()
    for offset in (1, 2):
        both_store_a_record(broker, two, three, offset - 1)
        waiting = two.send(offset, max_wait_ms=500)
        three.send(offset)
        assert broker.partition.high_watermark == offset
        assert waiting.is_answered == (offset == 1)
    broker.node.clock.advance(IDLE_ANSWER_MS - 1)
    assert not waiting.is_answered
    broker.node.clock.advance(1)
    (data,) = answers(waiting.response)
    assert data.high_watermark == 2


def test_records_take_a_stale_high_watermark_along() -> None:
    broker, two, three = opened()
    for offset in (1, 2):
        both_store_a_record(broker, two, three, offset - 1)
        waiting = two.send(offset, max_wait_ms=500)
        three.send(offset)
    broker.produce(b"b")
    (data,) = answers(waiting.response)
    assert (data.high_watermark, bool(data.records)) == (2, True)


def test_a_follower_that_has_started_anew_is_refused_in_its_old_session() -> None:
    broker = LeadingBroker()
    follower = SessionFollower(broker, 2)
    follower.open()
    assert follower.next() == []
    broker.change_broker(2, broker_epoch=21)
    (data,) = follower.next()
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("version", [11, 17])
def test_a_waiting_consumer_is_sent_to_its_rack_when_the_replica_there_can_serve_it(version: int) -> None:
    broker = LeadingBroker()
    end = broker.commit(b"a")
    for replica in (2, 3):
        broker.follow(replica, 0, high_watermark=0)  # both have lost it again
    reader = consumer(broker, version=version)
    assert [data.preferred_read_replica for data in reader.open({0: end}, rack_id="b")] == [-1]
    waiting = reader.send(max_wait_ms=500, rack_id="b")
    reader.epoch += 1
    assert not waiting.is_answered
    broker.follow(2, end, high_watermark=end)
    (data,) = answers(waiting.response)
    assert (data.preferred_read_replica, data.records) == (2, b"")


def test_a_waiting_consumer_is_sent_to_a_replica_whose_broker_comes_to_its_rack() -> None:
    broker = LeadingBroker(racks={1: "a", 2: "b"})
    end = broker.commit(b"a")
    reader = consumer(broker)
    assert [data.preferred_read_replica for data in reader.open({0: end}, rack_id="c")] == [-1]
    waiting = reader.send(max_wait_ms=500, rack_id="c")
    before = broker.controller.image
    broker.change_broker(3, rack="c")
    delta = ImageDelta(changed_brokers=(BrokerId(3),))
    broker.node.broker.fetch_sessions.on_image(replace(before), delta)
    broker.node.end_turn()
    (data,) = answers(waiting.response)
    assert data.preferred_read_replica == 3


def test_another_rack_in_the_same_session_is_another_choice() -> None:
    broker = LeadingBroker()
    end = broker.commit(b"a")
    reader = consumer(broker)
    reader.open({0: end}, rack_id="a")
    assert reader.next(rack_id="a") == []
    assert [data.preferred_read_replica for data in reader.next(rack_id="b")] == [2]


def followed() -> tuple[LeadingBroker, SessionFollower, SessionFollower]:
    """A broker, and both followers with a session in which the partition is clean."""
    broker, two, three = opened()
    assert two.next() == three.next() == []
    return broker, two, three


def proposed_members(broker: LeadingBroker) -> list[int]:
    proposal = broker.partition.in_sync.propose()
    assert proposal is not None
    return [member for member, _ in proposal.members]


def test_followers_that_were_idle_for_an_hour_are_in_sync_at_the_next_write() -> None:
    broker, two, three = followed()
    for _ in range(7):
        broker.node.clock.advance(500_000)
        assert two.next() == three.next() == []
    broker.produce(b"a")
    assert broker.partition.in_sync.propose() is None
    broker.node.clock.advance(1_000)
    assert broker.partition.in_sync.propose() is None


def test_a_follower_that_stopped_fetching_leaves_after_the_next_write() -> None:
    broker, two, three = followed()
    broker.node.clock.advance(30_001)
    assert three.next() == []
    assert broker.partition.in_sync.propose() is None  # it still has everything
    broker.produce(b"a")
    assert proposed_members(broker) == [1, 3]
    assert two.replica == 2


def test_a_forgotten_partition_rests_no_more() -> None:
    broker, two, three = followed()
    two.forget()
    broker.node.clock.advance(30_001)
    assert three.next() == []
    broker.produce(b"a")
    assert proposed_members(broker) == [1, 3]


def test_a_write_makes_no_follower_caught_up_that_has_not_fetched_since() -> None:
    broker, two, three = followed()
    broker.produce(b"a")
    for _ in range(4):
        broker.node.clock.advance(10_000)
        assert len(two.next()) == 1  # it is sent the record again, and does not store it
        three.next(1)
    assert proposed_members(broker) == [1, 3]


def test_a_high_watermark_of_a_partition_that_is_forgotten_at_once_is_not_acknowledged() -> None:
    """A follower forgets a partition whose answer it could not store: it does not have that high watermark."""
    broker, two, three = followed()
    both_store_a_record(broker, two, three)
    three.next(1)
    (data,) = two.next(1)
    assert data.high_watermark == 1
    two.forget()
    assert broker.partition.in_sync.serving(1) == []


def test_an_offset_above_both_ends_is_an_error_in_time_though_each_fetch_is_answered_early() -> None:
    bench = FollowingBroker()
    bench.node.create(partition=1)
    reader = SessionReader(bench.node)
    reader.open({1: 0})
    found = []
    for number in range(5):
        waiting = reader.send({1: number} if number else {0: 7}, max_wait_ms=500)
        assert waiting.is_answered is (number == 4)
        bench.clock.advance(200)
        bench.node.produce("orders", b"news", partition=1, acks=1)
        found.append({partition.partition_index: partition.error_code for partition in answers(waiting.response)})
        reader.epoch += 1
    # The first answer has the high watermark of the new partition too; the wait begins then.
    assert found == [{1: 0, 0: 0}, {1: 0}, {1: 0}, {1: 0}, {0: ErrorCode.OFFSET_OUT_OF_RANGE}]


def test_a_request_behind_a_followers_fetch_ends_its_wait() -> None:
    broker = LeadingBroker()
    follower = SessionFollower(broker, 2)
    follower.open()
    waiting = follower.send(max_wait_ms=500)
    assert not waiting.is_answered
    nothing = follower.end_wait()
    assert (waiting.is_answered, nothing.is_answered) == (True, True)
    assert (waiting.response.error_code, nothing.response.error_code) == (0, 0)
    assert (nothing.response.session_id, nothing.response.responses) == (0, ())
    assert not follower.send(max_wait_ms=500).is_answered, "the session goes on"


def test_a_request_ends_no_wait_of_another_follower() -> None:
    _, first, other = opened()
    waiting = first.send(max_wait_ms=500)
    other.end_wait()
    assert not waiting.is_answered
