"""The time for which a consumer reads from a follower, and from a leader that is not told the rack."""

from tailrace.client.reading.consumed_partition import ConsumedPartition
from tailrace.client.reading.replica_leases import AVOIDANCE_MS, ReplicaLeases
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition

LEASE_MS = 300_000
LEADER, REPLICA = 1, 2


def _partition(number: int = 0) -> ConsumedPartition:
    return ConsumedPartition(TopicPartition("orders", number))


def test_a_lease_ends_after_its_time_and_the_leader_serves() -> None:
    leases, partition = ReplicaLeases(lease_ms=LEASE_MS), _partition()
    leases.begin(partition, REPLICA, 1_000)
    assert partition.replica == REPLICA
    assert leases.end_expired(1_000 + LEASE_MS - 1) == []
    assert leases.end_expired(1_000 + LEASE_MS) == [partition]
    assert partition.replica is None
    assert leases.tells_rack(LEADER, 1_000 + LEASE_MS)


def test_a_lease_that_was_left_does_not_end_the_next_one_early() -> None:
    leases, partition = ReplicaLeases(lease_ms=LEASE_MS), _partition()
    leases.begin(partition, REPLICA, 0)
    leases.leave(partition, LEADER, 10)
    leases.begin(partition, REPLICA, 100_000)
    assert leases.end_expired(LEASE_MS) == []
    assert partition.replica == REPLICA


def test_a_partition_that_is_not_read_any_more_has_no_lease() -> None:
    leases, partition, other = ReplicaLeases(lease_ms=LEASE_MS), _partition(0), _partition(1)
    for each in (partition, other):
        leases.begin(each, REPLICA, 0)
    leases.forget(partition.name)
    leases.forget(_partition(2).name)
    assert leases.end_expired(LEASE_MS) == [other]


def test_a_lease_of_a_partition_that_is_assigned_again_is_its_own() -> None:
    leases, before, after = ReplicaLeases(lease_ms=LEASE_MS), _partition(), _partition()
    leases.begin(before, REPLICA, 0)
    leases.forget(before.name)
    leases.begin(after, REPLICA, 10)
    assert leases.end_expired(LEASE_MS) == []
    assert leases.end_expired(LEASE_MS + 10) == [after]


def test_a_leader_is_not_told_the_rack_after_a_fault_of_its_follower_each_time_for_longer() -> None:
    leases, partition = ReplicaLeases(lease_ms=LEASE_MS), _partition()
    now_ms = 0
    for time_ms in (AVOIDANCE_MS, 2 * AVOIDANCE_MS, 4 * AVOIDANCE_MS, LEASE_MS, LEASE_MS):
        leases.begin(partition, REPLICA, now_ms)
        leases.leave(partition, LEADER, now_ms)
        assert not leases.tells_rack(LEADER, now_ms + time_ms - 1)
        assert leases.tells_rack(LEADER, now_ms + time_ms)
        now_ms += time_ms


def test_a_follower_that_serves_makes_the_next_avoidance_short_again() -> None:
    leases, partition = ReplicaLeases(lease_ms=LEASE_MS), _partition()
    for now_ms in (0, LEASE_MS):
        leases.begin(partition, REPLICA, now_ms)
        leases.served(partition, now_ms)
        leases.leave(partition, LEADER, now_ms)
        assert leases.tells_rack(LEADER, now_ms + AVOIDANCE_MS)


def test_the_faults_of_many_partitions_at_once_are_one() -> None:
    leases = ReplicaLeases(lease_ms=LEASE_MS)
    partitions = [_partition(number) for number in range(3)]
    for partition in partitions:
        leases.begin(partition, REPLICA, 0)
    for partition in partitions:
        leases.leave(partition, LEADER, 10)
    assert leases.tells_rack(LEADER, 10 + AVOIDANCE_MS)


def test_a_follower_that_two_leaders_have_named_is_avoided_by_each_for_as_long() -> None:
    leases = ReplicaLeases(lease_ms=LEASE_MS)
    for leader, partition in ((1, _partition(0)), (3, _partition(1))):
        leases.begin(partition, REPLICA, 0)
        leases.leave(partition, leader, 10)
    for leader in (1, 3):
        assert not leases.tells_rack(leader, 10 + AVOIDANCE_MS - 1)
        assert leases.tells_rack(leader, 10 + AVOIDANCE_MS)


def test_a_follower_that_lags_behind_is_left_after_three_faults_in_a_row() -> None:
    partition = _partition()
    for code in (ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH):
        partition.strikes = 2
        assert not ReplicaLeases.is_enough(partition, code)
        partition.strikes = 3
        assert ReplicaLeases.is_enough(partition, code)


def test_a_follower_without_the_partition_is_left_at_once() -> None:
    assert ReplicaLeases.is_enough(_partition(), ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_follower_with_nothing_new_is_looked_at_after_two_seconds_and_then_less_often() -> None:
    leases, partition = ReplicaLeases(lease_ms=LEASE_MS), _partition()
    leases.begin(partition, REPLICA, 0)
    looks = [now_ms for now_ms in range(0, 100_000, 500) if leases.still(now_ms)]
    assert looks == [2_000, 6_000, 14_000, 30_000, 60_000, 90_000]


def test_a_follower_that_serves_is_not_looked_at() -> None:
    leases, partition = ReplicaLeases(lease_ms=LEASE_MS), _partition()
    leases.begin(partition, REPLICA, 0)
    for now_ms in range(1_000, 20_000, 1_000):
        leases.served(partition, now_ms)
        assert leases.still(now_ms) == []
    assert leases.still(21_000) == [partition]
    leases.leave(partition, None, 21_500)
    assert leases.still(60_000) == []
