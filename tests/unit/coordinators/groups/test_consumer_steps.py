"""The steps of a member towards its target (KIP-848)."""

from dataclasses import replace

from tailrace.coordinators.groups.consumer.assignment import NOTHING, Assignment
from tailrace.coordinators.groups.consumer.group import ConsumerMember, MemberState
from tailrace.coordinators.groups.consumer.steps import reconcile
from tailrace.coordinators.groups.consumer_records import ConsumerGroupMemberMetadataValue

TOPIC = bytes(15) + b"\x01"


def parts(*numbers: int) -> Assignment:
    return Assignment.of({TOPIC: numbers})


MEMBER = ConsumerMember(
    member_id="a",
    subscription=ConsumerGroupMemberMetadataValue(client_id="", client_host=""),
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
