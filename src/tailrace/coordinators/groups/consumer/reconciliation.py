"""The steps of a member from its current assignment to its target (KIP-848, "Reconciliation"; pure).

1. Revocation comes first: it stays in its epoch until it owns none of the revoked partitions.
2. It gets a new partition only when no other member owns it.
3. It enters the target's epoch when it has nothing to give up; it is stable when nothing is missing either.
"""

from collections.abc import Mapping, Set
from dataclasses import replace

from tailrace.coordinators.groups.consumer.group import Assignment, ConsumerMember, MemberState


def owns_any(owned: Assignment | None, partitions: Assignment) -> bool:
    """Whether a member that says it owns these owns any of those; one that does not say may."""
    if owned is None:
        return bool(partitions)
    return any(not owned.get(topic_id, frozenset()).isdisjoint(numbers) for topic_id, numbers in partitions.items())


def reconcile(
    member: ConsumerMember,
    target: Assignment,
    target_epoch: int,
    *,
    owned: Assignment | None,
    held_by_others: Mapping[bytes, Set[int]],
) -> ConsumerMember:
    """The member's next step. `owned` is what it said it reads, None if it did not say."""
    if member.is_at(target_epoch):
        return member
    if member.state is MemberState.UNREVOKED_PARTITIONS and (
        owned is None or owns_any(owned, member.pending_revocation)
    ):
        return member
    kept, revoked = _split(member.assigned, target)
    if revoked and owns_any(owned, revoked):
        return replace(
            member,
            previous_epoch=member.epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            pending_revocation=revoked,
        )
    assigned, is_complete = _take_free(target, kept, held_by_others)
    step = replace(
        member,
        epoch=target_epoch,
        previous_epoch=member.epoch,
        state=MemberState.STABLE if is_complete else MemberState.UNRELEASED_PARTITIONS,
        assigned=assigned,
        pending_revocation={},
    )
    # A member that waits for others makes no step by asking again.
    unchanged = (step.epoch, step.state, step.assigned) == (member.epoch, member.state, member.assigned)
    return member if unchanged else step


def _split(held: Assignment, target: Assignment) -> tuple[dict[bytes, frozenset[int]], dict[bytes, frozenset[int]]]:
    kept, revoked = {}, {}
    for topic_id, partitions in held.items():
        wanted = target.get(topic_id, frozenset())
        if partitions & wanted:
            kept[topic_id] = partitions & wanted
        if partitions - wanted:
            revoked[topic_id] = partitions - wanted
    return kept, revoked


def _take_free(
    target: Assignment, kept: Assignment, held_by_others: Mapping[bytes, Set[int]]
) -> tuple[dict[bytes, frozenset[int]], bool]:
    assigned, is_complete = {}, True
    for topic_id, partitions in target.items():
        free = frozenset(partitions - held_by_others.get(topic_id, frozenset())) | kept.get(topic_id, frozenset())
        is_complete = is_complete and free == partitions
        if free:
            assigned[topic_id] = free
    return assigned, is_complete
