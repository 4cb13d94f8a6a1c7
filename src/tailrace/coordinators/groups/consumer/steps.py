"""The steps of a request in a consumer group, with either protocol, and their records (KIP-848; pure).

1. The member has a new subscription. 2. A new subscription, or a change of the topics, begins a new group epoch. 3. A
new epoch needs a new target assignment. 4. The member goes one step towards its target.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups.consumer.assignment import NOTHING, Assignment
from tailrace.coordinators.groups.consumer.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Subscriber
from tailrace.coordinators.groups.consumer.change import GroupChange, Kind, retirement
from tailrace.coordinators.groups.consumer.conversion import as_classic, fits
from tailrace.coordinators.groups.consumer.group import ConsumerMember, MemberState, Topics
from tailrace.coordinators.groups.consumer_records import (
    ConsumerGroupMemberMetadataValue,
    TargetAssignmentMemberValue,
    TargetAssignmentMetadataValue,
)
from tailrace.coordinators.groups.history import GroupEventKind
from tailrace.coordinators.groups.moves import MOST_PARTITIONS, moves_in_words
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition


def check_size(change: GroupChange, config: GroupConfig) -> None:
    """Raises KafkaError GROUP_MAX_SIZE_REACHED (81) if the group has as many members as its limit."""
    size = len(change.group.members)
    if size >= config.group_consumer_max_size:
        detail = f"group {change.group_id!r} has {size} members, as many as group.consumer.max.size allows"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, detail)


def take_place(change: GroupChange, former: ConsumerMember, member_id: str) -> ConsumerMember:
    """Let a static member that is back under another id take over the subscription and partitions of the former id."""
    target = change.group.targets.get(former.member_id)
    change.forget(former.member_id)
    change.emit(Kind.MEMBER, former.subscription, member_id)
    if target is not None:
        change.emit(Kind.TARGET_MEMBER, TargetAssignmentMemberValue(topic_partitions=target.stored()), member_id)
    back = replace(former, member_id=member_id, epoch=0, previous_epoch=0)
    change.emit(Kind.CURRENT, back.current(), member_id)
    change.add_event(GroupEventKind.JOIN, f"static member {former.subscription.instance_id!r} is back", member_id)
    return change.group.members[member_id]


def subscribe(
    change: GroupChange,
    member_id: str,
    old: ConsumerGroupMemberMetadataValue | None,
    new: ConsumerGroupMemberMetadataValue,
) -> bool:
    """Record a changed subscription of the member; returns whether the group therefore needs a new assignment."""
    if old == new:
        return False
    if old is None:
        reason = f"a new member of client {new.client_id!r} at {new.client_host}"
        change.add_event(GroupEventKind.JOIN, reason, member_id)
    change.emit(Kind.MEMBER, new, member_id)
    return (
        old is None
        or set(old.subscribed_topic_names) != set(new.subscribed_topic_names)
        or old.subscribed_topic_regex != new.subscribed_topic_regex
        or _client_of(old) != _client_of(new)
    )


def _client_of(subscription: ConsumerGroupMemberMetadataValue) -> tuple[str, str]:
    """The client whose access decides on the matches of the subscription's expression: principal and host. Empty texts
    without an expression, since names are checked with the request, or if no rules decide."""
    if not (subscription.subscribed_topic_regex and subscription.principal):
        return "", ""
    return subscription.principal, subscription.client_host


def _described(change: GroupChange, subscription: ConsumerGroupMemberMetadataValue, topics: Topics) -> frozenset[str]:
    """The topics that match the expression of a subscription, and that its client may describe."""
    matches = change.group.matches(subscription.subscribed_topic_regex)
    return topics.described_by(*_client_of(subscription), matches) if matches else matches


def settle(change: GroupChange, topics: Topics, *, newly_subscribed: str | None, must_check_topics: bool) -> None:
    """Begin a new epoch with a new target, if a member's subscription or the topics have changed."""
    if newly_subscribed is not None or must_check_topics:
        _resolve_expressions(change, topics)
        _begin_epoch(change, topics, newly_subscribed)
    if (change.group.epoch or 0) > change.group.target_epoch:
        _assign(change, topics)


def _resolve_expressions(change: GroupChange, topics: Topics) -> None:
    """Record the matches of the group's regular expressions that have changed."""
    subscribed = change.group.subscribed_expressions
    for expression in sorted(subscribed):
        found = topics.matches(expression)
        if found is not None and change.group.expressions.get(expression) != frozenset(found.topics):
            change.resolve(expression, found)
    change.forget_expressions(subscribed)


def _begin_epoch(change: GroupChange, topics: Topics, newly_subscribed: str | None) -> None:
    group = change.group
    metadata_hash = _hash(change, topics)
    if newly_subscribed is not None or metadata_hash != group.metadata_hash:
        change.bump_epoch(metadata_hash)
        cause = "topics changed" if newly_subscribed is None else f"{newly_subscribed} joined or subscribed anew"
        change.add_event(GroupEventKind.REBALANCE, f"epoch {change.group.epoch}: {cause}")


def _hash(change: GroupChange, topics: Topics) -> int:
    """A hash of the topics, of their partition counts, and of the matches that are hidden from members; 0 for no
    topics."""
    group = change.group
    found = [(name, topic) for name in sorted(group.topics) if (topic := topics.find(name)) is not None]
    if not found:
        return 0
    digest = blake2b(digest_size=8)
    for name, topic in found:
        digest.update(f"{name}\0{topic.partition_count}\0".encode() + topic.topic_id)
    for client, expression, described in sorted(_narrowed(change, topics)):
        digest.update("\0".join(("", *client, expression, *described, "")).encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


def _narrowed(change: GroupChange, topics: Topics) -> Iterator[tuple[tuple[str, str], str, list[str]]]:
    """The clients that may not describe every match of their expression, with the topics that they may describe."""
    subscriptions = {_wish(member): member.subscription for member in change.group.members.values()}
    for subscription in subscriptions.values():
        expression = subscription.subscribed_topic_regex
        if expression:
            described = _described(change, subscription, topics)
            if described != change.group.matches(expression):
                yield _client_of(subscription), expression, sorted(described)


def _assign(change: GroupChange, topics: Topics) -> None:
    """Record a target for all members, for the group's present epoch."""
    group = change.group
    known = {name: topic for name in group.topics if (topic := topics.find(name)) is not None}
    wishes = {_wish(member): member.subscription for member in group.members.values()}
    ids = {
        wish: frozenset(
            known[name].topic_id
            for name in _described(change, subscription, topics).union(subscription.subscribed_topic_names)
            if name in known
        )
        for wish, subscription in wishes.items()
    }
    members = [
        Subscriber(
            member_id=member.member_id,
            order=member.subscription.instance_id or member.member_id,
            topic_ids=ids[_wish(member)],
            target=group.targets.get(member.member_id, NOTHING),
        )
        for member in group.members.values()
    ]
    name = group.assignor(DEFAULT_ASSIGNOR)
    counts = {topic.topic_id: topic.partition_count for topic in known.values()}
    before: dict[str, Assignment] = {}
    after: dict[str, Assignment] = {}
    for member_id, target in ASSIGNORS[name](members, counts).items():
        former = group.targets.get(member_id)
        if former != target:
            before[member_id], after[member_id] = former or NOTHING, target
            value = TargetAssignmentMemberValue(topic_partitions=target.stored())
            change.emit(Kind.TARGET_MEMBER, value, member_id)
    change.emit(Kind.TARGET, TargetAssignmentMetadataValue(assignment_epoch=group.epoch or 0))
    moves = ""
    if sum(counts.values()) <= MOST_PARTITIONS:
        names = {topic.topic_id: found for found, topic in known.items()}
        moves = moves_in_words(_named(before, names), _named(after, names))
    change.add_event(GroupEventKind.ASSIGNED, f"epoch {group.epoch}: assignor: {name}, members: {len(members)}{moves}")


def _named(assignments: Mapping[str, Assignment], names: Mapping[bytes, str]) -> dict[str, list[TopicPartition]]:
    return {
        member_id: [
            TopicPartition(names[topic_id], number)
            for topic_id, numbers in assignment
            if topic_id in names
            for number in numbers
        ]
        for member_id, assignment in assignments.items()
    }


def _wish(member: ConsumerMember) -> tuple[int, str | None, tuple[str, str]]:
    """A key for the subscription of a member: the identity of its tuple of topic names, which equal subscriptions
    share, its expression, and the client whose access decides."""
    subscription = member.subscription
    return id(subscription.subscribed_topic_names), subscription.subscribed_topic_regex, _client_of(subscription)


def advance(change: GroupChange, member_id: str, owned: Assignment | None) -> ConsumerMember:
    """Record the member's next step towards its target. `owned` are the partitions in its request, if any."""
    group = change.group
    member = group.members[member_id]
    if member.is_at(group.target_epoch):
        return member
    step = reconcile(
        member,
        group.targets.get(member_id, NOTHING),
        group.target_epoch,
        owned=owned,
        held_by_others=group.held_by_others(member_id),
    )
    if step is not member:
        change.emit(Kind.CURRENT, step.current(), member_id)
    return step


def remove(change: GroupChange, member_ids: Collection[str], topics: Topics, config: GroupConfig) -> None:
    """Remove the members. If only classic members are left, the group becomes a classic group where `downgrade` allows
    it; otherwise a new group epoch begins."""
    metadata_hash = change.group.metadata_hash
    for member_id in member_ids:
        change.forget(member_id)
    named = ", ".join(sorted(member_ids)[:5])
    if downgrade(change, topics, config):
        return
    change.forget_expressions(change.group.subscribed_expressions)
    change.bump_epoch(metadata_hash)
    change.add_event(GroupEventKind.REBALANCE, f"epoch {change.group.epoch}: {named} is gone")


def downgrade(change: GroupChange, topics: Topics, config: GroupConfig) -> bool:
    """Make the group a classic group, if only classic members are left, the settings allow the conversion, and the
    records fit a batch."""
    classic = as_classic(change.group_id, change.group, topics, config)
    if classic is None or not fits((*change.records, *retirement(change.group_id, change.group), classic)):
        return False
    change.become(classic)
    change.add_event(GroupEventKind.CONVERTED, "to a classic group: no member speaks the consumer protocol any more")
    return True


def owns_any(owned: Assignment | None, partitions: Assignment) -> bool:
    """Whether a member that reports `owned` may own any of `partitions`; without a report the member may."""
    return bool(partitions) if owned is None else not partitions.isdisjoint(owned)


def reconcile(
    member: ConsumerMember,
    target: Assignment,
    target_epoch: int,
    *,
    owned: Assignment | None,
    held_by_others: Assignment,
) -> ConsumerMember:
    """The member's next step. `owned` are the partitions in its request; None if the request states no partitions.

    1. Revocation comes first: the member stays in its epoch until it owns none of the revoked partitions. A revoked
       partition is free for other members as soon as the member does not own the partition any more. In the step that
       begins the revocation a partition that the request does not name may be on its way to the member. A withdrawn
       member, which subscribes to nothing, takes nothing any more, and owns nothing that it does not name.
    2. The member gets a new partition only when no other member owns that partition, and when the member has nothing to
       revoke. A member that shares by key gets free slots beside a revocation, in the target's epoch: a call that takes
       long in one slot keeps no other slot from its next owner (decision 0105).
    3. The member enters the target's epoch when it has nothing to revoke. The member is stable when it also has every
       partition of the target.
    """
    if member.is_at(target_epoch):
        return member
    if member.is_withdrawn:
        unrevoked = member.held if owned is None else member.held & owned
        if unrevoked:
            revoking = MemberState.UNREVOKED_PARTITIONS
            step = replace(member, state=revoking, assigned=NOTHING, pending_revocation=unrevoked)
            return member if step == member else step
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        unrevoked = member.pending_revocation if owned is None else member.pending_revocation & owned
        if unrevoked:
            step = member if unrevoked == member.pending_revocation else replace(member, pending_revocation=unrevoked)
            comes = target - held_by_others - member.held if member.shares_by_key else NOTHING
            if not comes:
                return step
            return replace(step, epoch=target_epoch, previous_epoch=member.epoch, assigned=member.assigned | comes)
    kept, revoked = member.assigned & target, member.assigned - target
    if revoked and owns_any(owned, revoked):
        return replace(
            member,
            previous_epoch=member.epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            pending_revocation=revoked,
        )
    assigned = (target - held_by_others) | kept
    step = replace(
        member,
        epoch=target_epoch,
        previous_epoch=member.epoch,
        state=MemberState.STABLE if assigned == target else MemberState.UNRELEASED_PARTITIONS,
        assigned=assigned,
        pending_revocation=NOTHING,
    )
    # A repeated request of a member that waits for other members is no step.
    unchanged = (step.epoch, step.state, step.assigned) == (member.epoch, member.state, member.assigned)
    return member if unchanged else step
