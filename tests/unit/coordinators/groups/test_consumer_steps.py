"""The steps of a member towards its target (KIP-848)."""

from dataclasses import replace

from tailrace.coordinators.groups.consumer.assignment import NOTHING, Assignment
from tailrace.coordinators.groups.consumer.group import ConsumerMember, MemberState
from tailrace.coordinators.groups.consumer.steps import reconcile
from tailrace.coordinators.groups.consumer_records import ConsumerGroupMemberMetadataValue

TOPIC = bytes(15) + b"\x01"


def parts(*numbers: int) -> Assignment:
    return Assignment.of({TOPIC: numbers})


def subscription(*topics: str) -> ConsumerGroupMemberMetadataValue:
    return ConsumerGroupMemberMetadataValue(client_id="", client_host="", subscribed_topic_names=topics)


MEMBER = ConsumerMember(
    member_id="a",
    subscription=subscription("orders"),
    epoch=1,
    state=MemberState.UNREVOKED_PARTITIONS,
    assigned=parts(0),
    pending_revocation=parts(1, 2),
)
"""A member that is to give up two of three partitions."""


def step(member: ConsumerMember, owned: Assignment | None) -> ConsumerMember:
    return reconcile(member, parts(0), 2, owned=owned, held_by_others=NOTHING)


def test_a_revoked_partition_that_a_member_names_no_more_is_free() -> None:
    assert step(MEMBER, parts(0, 2)) == replace(MEMBER, pending_revocation=parts(2))
    done = replace(MEMBER, epoch=2, previous_epoch=1, state=MemberState.STABLE, pending_revocation=NOTHING)
    assert step(step(MEMBER, parts(0, 2)), parts(0)) == step(MEMBER, parts(0)) == done


def test_a_member_that_names_no_partitions_may_own_all_that_it_is_to_give_up() -> None:
    assert step(MEMBER, None) is MEMBER
    assert step(MEMBER, parts(0, 1, 2)) is MEMBER


STABLE = replace(MEMBER, state=MemberState.STABLE, assigned=parts(0, 1, 2), pending_revocation=NOTHING)


def begin(owned: Assignment | None, *topics: str) -> Assignment:
    """The partitions that a stable member of these topics is to give up when its target is empty."""
    member = replace(STABLE, subscription=subscription(*topics))
    return reconcile(member, NOTHING, 2, owned=owned, held_by_others=NOTHING).pending_revocation


def test_a_partition_that_a_withdrawn_member_does_not_name_is_free_at_once() -> None:
    assert begin(parts(1)) == parts(1)
    assert begin(None) == parts(0, 1, 2)


def test_a_withdrawn_member_keeps_no_partition_back_while_it_gives_up_others() -> None:
    """A slot of the revocation before is busy, and so is a slot that was to stay."""
    busy = replace(MEMBER, subscription=subscription(), assigned=parts(0, 3, 4))
    step = reconcile(busy, NOTHING, 3, owned=parts(0, 1), held_by_others=NOTHING)
    assert step == replace(busy, assigned=NOTHING, pending_revocation=parts(0, 1))
    assert reconcile(step, NOTHING, 3, owned=parts(0, 1), held_by_others=NOTHING) is step
    last = reconcile(step, NOTHING, 3, owned=NOTHING, held_by_others=NOTHING)
    assert (last.held, last.state, last.epoch) == (NOTHING, MemberState.STABLE, 3)


def test_a_partition_may_be_on_its_way_to_a_member_that_does_not_name_it() -> None:
    assert begin(parts(1), "orders") == parts(0, 1, 2)


def test_a_free_slot_has_its_next_owner_while_the_owner_gives_up_another_slot() -> None:
    """The epoch is that of the target: a token of the slot's former owner is lower."""
    target, others = parts(0, 1, 3, 4), parts(4)
    sharing = replace(MEMBER, subscription=subscription("orders.shared-8"))
    step = reconcile(sharing, target, 5, owned=parts(0, 1), held_by_others=others)
    assert step == replace(sharing, epoch=5, previous_epoch=1, assigned=parts(0, 3), pending_revocation=parts(1))
    whole = reconcile(MEMBER, target, 5, owned=parts(0, 1), held_by_others=others)
    assert whole == replace(MEMBER, pending_revocation=parts(1)), "Kafka's rule for whole partitions"
