"""BalanceLeaders: preferred leaders where others lead too much, in batches and in short steps."""

import pytest

from tailrace.metadata.commands import BalanceLeaders, LeadersBalanced
from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.deciding.leader_balance import MAX_ELECTIONS
from tailrace.metadata.derive import SLICE
from tailrace.metadata.records.brokers import BrokerRegistrationChangeRecord, FenceBrokerRecord, UnfenceBrokerRecord
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.topics import PartitionChangeRecord, PartitionRecord, TopicRecord
from tailrace.model.ids import BrokerId
from testkit.quorum.controllers import controller_machine
from testkit.quorum.metadata_records import new_broker, new_partition

ORDERS = b"the id of orders"
BOTH = (BrokerId(1), BrokerId(3))


def alive(broker_id: int) -> list[MetadataRecord]:
    return [new_broker(broker_id), UnfenceBrokerRecord(id=broker_id, epoch=broker_id)]


def partition(number: int, *replicas: int, leader: int, in_sync: tuple[int, ...] | None = None) -> PartitionRecord:
    isr = in_sync or replicas
    return new_partition(ORDERS, number, *replicas, isr=isr, leader=leader, leader_epoch=5, partition_epoch=7)


def cluster(*partitions: PartitionRecord, more: tuple[MetadataRecord, ...] = ()) -> ControllerMachine:
    """Brokers 1, 2 and 3, and one topic."""
    machine = controller_machine()
    machine.apply_all([*alive(1), *alive(2), *alive(3), TopicRecord(name="orders", topic_id=ORDERS), *partitions])
    for record in more:
        machine.apply(record)
    return machine


def balance(machine: ControllerMachine, *, allowed: int = 10, unfinished: tuple[int, ...] = ()) -> LeadersBalanced:
    """Decide, apply, and return the answer."""
    command = BalanceLeaders(allowed_percentage=allowed, unfinished=tuple(map(BrokerId, unfinished)))
    decision = machine.decide(command, 0, next_offset=77)
    machine.apply_all(decision.records)
    assert isinstance(decision.response, LeadersBalanced)
    assert decision.response.elected == len(decision.records)
    return decision.response


def leaders(machine: ControllerMachine) -> list[int]:
    return [state.leader for state in machine.image.topics["orders"].partitions.values()]


def prefers_1(count: int, *, led_by_2: int) -> list[PartitionRecord]:
    return [partition(number, 1, 2, leader=2 if number < led_by_2 else 1) for number in range(count)]


@pytest.mark.parametrize(("led_by_2", "elected"), [(0, 0), (1, 0), (2, 2), (10, 10)])
def test_leaders_are_elected_if_others_lead_more_than_the_allowed_share(led_by_2: int, elected: int) -> None:
    machine = cluster(*prefers_1(10, led_by_2=led_by_2))
    assert balance(machine) == LeadersBalanced(elected=elected, unfinished=())
    assert leaders(machine).count(1) == 10 - led_by_2 + elected


def test_the_share_of_each_broker_counts_for_itself() -> None:
    of_3 = [partition(number, 3, 1, leader=1) for number in range(100, 102)]
    machine = cluster(*prefers_1(20, led_by_2=2), *of_3)
    assert balance(machine).elected == 2
    assert leaders(machine) == [2, 2, *[1] * 18, 3, 3]


def test_an_election_begins_a_leader_epoch_and_keeps_the_in_sync_replicas() -> None:
    machine = cluster(partition(0, 1, 2, 3, leader=2, in_sync=(2, 1)))
    command = BalanceLeaders(allowed_percentage=10)
    (record,) = machine.decide(command, 0, next_offset=77).records
    assert record == PartitionChangeRecord(partition_id=0, topic_id=ORDERS, leader=1)
    machine.apply(record)
    state = machine.image.topics["orders"].partitions[0]
    assert (state.leader_epoch, state.partition_epoch, state.in_sync_replicas) == (6, 8, (2, 1))


@pytest.mark.parametrize(
    ("in_sync", "more"),
    [
        ((2,), ()),
        ((2, 1), (FenceBrokerRecord(id=1, epoch=1),)),
        ((2, 1), (BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, in_controlled_shutdown=1),)),
    ],
    ids=["not in sync", "fenced", "shutting down"],
)
def test_a_preferred_replica_that_is_not_alive_and_in_sync_is_not_elected(
    in_sync: tuple[int, ...], more: tuple[MetadataRecord, ...]
) -> None:
    machine = cluster(partition(0, 1, 2, leader=2, in_sync=in_sync), more=more)
    assert balance(machine) == LeadersBalanced(elected=0, unfinished=())
    assert leaders(machine) == [2]


def test_a_balance_goes_on_in_batches_to_its_end() -> None:
    """Also below the allowed share, once it has begun: 10 % of the partitions are not left as they are."""
    count = 2 * MAX_ELECTIONS + 50
    machine = cluster(*prefers_1(count, led_by_2=count), partition(count, 3, 1, leader=1))
    assert balance(machine) == LeadersBalanced(elected=MAX_ELECTIONS, unfinished=BOTH)
    assert balance(machine, unfinished=(1, 3)) == LeadersBalanced(elected=MAX_ELECTIONS, unfinished=BOTH)
    assert balance(machine, unfinished=(1, 3)) == LeadersBalanced(elected=51, unfinished=())
    assert leaders(machine) == [*[1] * count, 3]


def test_a_broker_that_dies_during_its_balance_is_left_out() -> None:
    count = MAX_ELECTIONS + 1
    machine = cluster(*prefers_1(count, led_by_2=count))
    assert balance(machine).unfinished == (1,)
    machine.apply(FenceBrokerRecord(id=1, epoch=1))
    assert balance(machine, unfinished=(1,)) == LeadersBalanced(elected=0, unfinished=())


def test_partitions_are_counted_in_short_steps() -> None:
    count = 4 * SLICE
    machine = cluster(*prefers_1(count, led_by_2=0))
    steps = machine.deciding(BalanceLeaders(allowed_percentage=10), 0, next_offset=77)
    assert sum(1 for _ in steps) == 4
