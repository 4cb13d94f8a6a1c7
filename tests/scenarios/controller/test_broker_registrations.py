"""Registrations, heartbeats, fencing and controlled shutdown of brokers at the controller (KIP-631)."""

import pytest

from scenarios.controller.leadership_cluster import SESSION_MS, LeadershipCluster, led
from tailrace.metadata.broker_commands import BrokerHeartbeat, FenceSilentBroker, UnregisterBroker
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId


def test_a_broker_is_unfenced_when_it_has_applied_its_own_registration() -> None:
    cluster = LeadershipCluster(brokers=0)
    epoch = cluster.register(1)
    behind = cluster.beat(1, applied=epoch - 1)
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    caught_up = cluster.beat(1, applied=epoch)
    assert (caught_up.is_caught_up, caught_up.is_fenced) == (True, False)


def test_a_broker_that_wishes_to_be_fenced_stays_fenced_until_it_wishes_no_more(cluster: LeadershipCluster) -> None:
    assert cluster.beat(1, wants_fence=True).is_fenced
    assert cluster.beat(1, wants_fence=True).is_fenced
    assert not cluster.beat(1).is_fenced


def test_a_heartbeat_of_an_earlier_process_of_a_broker_is_refused(cluster: LeadershipCluster) -> None:
    old = cluster.epoch(1)
    cluster.restart(1)
    with pytest.raises(KafkaError) as refusal:
        cluster.do(BrokerHeartbeat(broker_id=BrokerId(1), broker_epoch=old, metadata_offset=0))
    assert refusal.value.code is ErrorCode.STALE_BROKER_EPOCH
    with pytest.raises(KafkaError) as refusal:
        cluster.do(BrokerHeartbeat(broker_id=BrokerId(9), broker_epoch=old, metadata_offset=0))
    assert refusal.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_silent_brokers_are_fenced_one_at_a_time_and_once(cluster: LeadershipCluster) -> None:
    cluster.now_ms = SESSION_MS - 1
    cluster.beat(3)
    cluster.do(FenceSilentBroker())
    assert not any(broker.fenced for broker in cluster.machine.image.brokers.values())
    cluster.now_ms = SESSION_MS
    assert cluster.machine.heartbeats.silent(cluster.now_ms) == [1, 2]
    for _ in range(3):
        cluster.do(FenceSilentBroker())
    assert {b.broker_id: b.fenced for b in cluster.machine.image.brokers.values()} == {1: True, 2: True, 3: False}
    assert cluster.machine.heartbeats.next_deadline_ms == 2 * SESSION_MS - 1


def test_a_new_controller_gives_every_broker_a_whole_session(cluster: LeadershipCluster) -> None:
    cluster.now_ms = 5 * SESSION_MS
    cluster.machine.heartbeats.restart(cluster.machine.image.brokers, cluster.now_ms)
    cluster.do(FenceSilentBroker())
    assert not any(broker.fenced for broker in cluster.machine.image.brokers.values())
    assert cluster.machine.heartbeats.next_deadline_ms == 6 * SESSION_MS


def test_a_second_process_of_a_living_broker_is_refused_until_the_first_is_silent(cluster: LeadershipCluster) -> None:
    with pytest.raises(KafkaError) as refusal:
        cluster.register(1)
    assert refusal.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.machine.heartbeats.shorten(BrokerId(1), cluster.now_ms, 400)  # its connection was reset
    cluster.now_ms = 400
    cluster.start(1)


def test_at_a_new_controller_a_broker_without_a_heartbeat_is_replaced_by_its_own_next_start_alone(
    cluster: LeadershipCluster,
) -> None:
    """A client that registers over a live broker while the controller changes would fence it, and keep its id."""
    cluster.fence(1)
    cluster.start(1, directories=(b"its own.........",))
    cluster.machine.heartbeats.restart(cluster.machine.image.brokers, cluster.now_ms)
    for directories in ((), (b"of a stranger...",)):
        with pytest.raises(KafkaError) as refusal:
            cluster.register(1, directories=directories)
        assert refusal.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.start(1, directories=(b"its own.........",))  # after a kill of all nodes: at once
    cluster.machine.heartbeats.restart(cluster.machine.image.brokers, cluster.now_ms)
    cluster.now_ms += SESSION_MS
    cluster.start(1, directories=(b"of a new disk...",))


def test_a_broker_may_shut_down_when_it_leads_nothing_and_the_other_brokers_know(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    asked = cluster.beat(1, wants_shutdown=True)
    assert not asked.should_shut_down
    assert led(cluster.state) == (2, (2, 3), ())
    moved_at = cluster.offset - 1
    cluster.beat(2, applied=moved_at)
    cluster.beat(3, applied=moved_at - 1)
    assert not cluster.beat(1, wants_shutdown=True).should_shut_down, "broker 3 does not know yet"
    cluster.beat(3, applied=moved_at)
    assert cluster.beat(1, wants_shutdown=True).should_shut_down
    assert cluster.machine.image.brokers[BrokerId(1)].fenced
    assert cluster.beat(1, wants_shutdown=True).should_shut_down, "asked again, the answer is the same"


def test_a_broker_shuts_down_when_the_other_brokers_know_the_last_handover(cluster: LeadershipCluster) -> None:
    """A control record that is appended while a decision is prepared moves the decision's records."""
    cluster.create(1, 2, 3)
    cluster.others_append = 2
    assert not cluster.beat(1, wants_shutdown=True).should_shut_down
    moved_at = cluster.offset - 1
    cluster.beat(2, applied=moved_at)
    cluster.beat(3, applied=moved_at - 1)
    assert not cluster.beat(1, wants_shutdown=True).should_shut_down, "broker 3 does not know yet"
    cluster.beat(3, applied=moved_at)
    assert cluster.beat(1, wants_shutdown=True).should_shut_down


def test_a_broker_that_leads_nothing_may_shut_down_at_once(cluster: LeadershipCluster) -> None:
    assert cluster.beat(2, wants_shutdown=True).should_shut_down


def test_a_new_controller_lets_a_broker_shut_down_that_asked_its_predecessor(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    cluster.beat(1, wants_shutdown=True)
    cluster.machine.heartbeats.restart(cluster.machine.image.brokers, cluster.now_ms)
    assert not cluster.beat(1, wants_shutdown=True).should_shut_down, "no broker has reported the offset it has applied"
    cluster.beat(2)
    cluster.beat(3)
    assert cluster.beat(1, wants_shutdown=True).should_shut_down


def test_a_broker_that_is_unregistered_leaves_every_partition(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, min_in_sync=2)
    with pytest.raises(KafkaError) as refusal:
        cluster.do(UnregisterBroker(broker_id=BrokerId(1)))
    assert refusal.value.code is ErrorCode.INVALID_REQUEST  # it serves
    cluster.fence(1)
    assert led(cluster.state) == (2, (2,), (1,))
    cluster.do(UnregisterBroker(broker_id=BrokerId(1)))
    assert led(cluster.state) == (2, (2,), ())
    assert BrokerId(1) not in cluster.machine.image.brokers
    with pytest.raises(KafkaError) as refusal:
        cluster.do(UnregisterBroker(broker_id=BrokerId(1)))
    assert refusal.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
