"""KIP-848 groups: ConsumerGroupHeartbeat in order and out of order, and ConsumerGroupDescribe."""

from collections.abc import Sequence
from typing import Any

from interop.differential.catalogue.groups.classic_groups import beat, join, joined, leave
from interop.differential.catalogue.groups.group_offsets import Offsets, commit, fetch_offsets
from interop.differential.catalogue.preparation import created
from interop.differential.script import Answers, Ask, Build, Script, ask
from tailrace.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
from tailrace.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from tailrace.protocol.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

TOPIC, OTHER = "consumer-groups", "consumer-groups-other"
ALICE, BOB = "alice", "bob"
_BOTH = (0, 1)


def consumer_groups() -> Script:
    yield from created(TOPIC, 4)
    yield from created(OTHER, 2)
    yield from _refused("refused")
    yield from _life("life")
    yield from _two("pair")
    yield from _static("fixed")
    yield from _other_kind("mixed", "classic-one")


def heartbeat(
    group: str,
    member: str = ALICE,
    epoch: int = 0,
    *,
    topics: Sequence[str] | None = (TOPIC,),
    owned: Sequence[tuple[str, Sequence[int]]] | None = (),
    instance: str | None = None,
    rebalance_ms: int = 30_000,
    assignor: str | None = None,
    regex: str | None = None,
    rack: str | None = None,
) -> Build:
    """A heartbeat; owned partitions are named by the topic's name."""

    def build(answers: Answers) -> ConsumerGroupHeartbeatRequest:
        partitions = None
        if owned is not None:
            partitions = tuple(
                HeartbeatTopicPartitions(topic_id=answers.topic_ids[name], partitions=tuple(indexes))
                for name, indexes in owned
            )
        return ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            instance_id=instance,
            rack_id=rack,
            rebalance_timeout_ms=rebalance_ms,
            subscribed_topic_names=None if topics is None else tuple(topics),
            subscribed_topic_regex=regex,
            server_assignor=assignor,
            topic_partitions=partitions,
        )

    return build


def same(group: str, member: str, epoch: int, *, owned: Sequence[tuple[str, Sequence[int]]] | None = None) -> Build:
    """A heartbeat with nothing new."""
    return heartbeat(group, member, epoch, topics=None, owned=owned, rebalance_ms=-1)


def describe(*groups: str) -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(group_ids=groups)


def _refused(group: str) -> Script:
    bad: dict[str, Build] = {
        "without a group": heartbeat(""),
        "with a blank group": heartbeat("  "),
        "in epoch -3": heartbeat(group, epoch=-3),
        "without a subscription": heartbeat(group, topics=None),
        "without a rebalance time": heartbeat(group, rebalance_ms=-1),
        "with partitions": heartbeat(group, owned=[(TOPIC, [0])]),
        "without a list of partitions": heartbeat(group, owned=None),
        "with an empty instance": heartbeat(group, instance=""),
        "with an empty rack": heartbeat(group, rack=""),
        "with an assignor that is none": heartbeat(group, assignor="best"),
        "with an empty assignor": heartbeat(group, assignor=""),
        "in epoch 1 of no group": same(group, ALICE, 1),
        "leaving no group": same(group, ALICE, -1),
        "leaving no group for a while": same(group, ALICE, -2),
        "leaving no group for a while as an instance": heartbeat(group, ALICE, -2, instance="i", topics=None),
    }
    for what, build in bad.items():
        yield from ask(f"a heartbeat {what}", build, *_BOTH)
    yield from ask("a heartbeat without a member", heartbeat(group, ""), 1)
    yield from ask("a heartbeat of a blank member", heartbeat(group, "  "), 1)
    yield from ask("a group of this kind that is not there", describe(group, ""), *_BOTH)


def _life(group: str) -> Script:
    yield from ask(f"{group}: the node makes an id", heartbeat(f"{group}-id", ""), 0)
    yield from ask(f"{group}: a member joins", heartbeat(group), 1)
    yield from ask(f"{group}: it says so again", heartbeat(group), 1)
    yield from ask(f"{group}: nothing new", same(group, ALICE, 1), *_BOTH)
    everything = [(TOPIC, [0, 1, 2, 3])]
    yield from ask(f"{group}: it owns what it was given", same(group, ALICE, 1, owned=everything), *_BOTH)
    yield from ask(f"{group}: described", describe(group), *_BOTH)
    yield from ask(f"{group}: described as a classic group", DescribeGroupsRequest(groups=(group,)), 0, 5, 6)
    for epoch in (0, 2, 9, -2):
        yield from ask(f"{group}: in epoch {epoch}", same(group, ALICE, epoch), *_BOTH)
    yield from ask(f"{group}: an unknown member", same(group, BOB, 1), *_BOTH)
    yield from ask(f"{group}: it owns what it was not given", same(group, ALICE, 1, owned=[(OTHER, [0])]), *_BOTH)
    yield from ask(f"{group}: an assignor that is none", heartbeat(group, ALICE, 1, assignor="best"), *_BOTH)
    yield from ask(f"{group}: an unknown topic too", heartbeat(group, ALICE, 1, topics=(TOPIC, "nowhere")), 1)
    yield from ask(f"{group}: another topic", heartbeat(group, ALICE, 2, topics=(OTHER,), owned=everything), 1)
    yield from ask(f"{group}: what it had is given up", same(group, ALICE, 2, owned=()), 1)
    yield from ask(f"{group}: nothing new after it", same(group, ALICE, 3), 1)
    yield from ask(f"{group}: the epoch before", same(group, ALICE, 2, owned=()), 1)
    yield from ask(f"{group}: described after it", describe(group), *_BOTH)
    yield from _offsets(group)
    yield from ask(f"{group}: deleted while it has a member", DeleteGroupsRequest(groups_names=(group,)), 2)
    yield from ask(f"{group}: it leaves", same(group, ALICE, -1), 1)
    yield from ask(f"{group}: it leaves again", same(group, ALICE, -1), 1)
    yield from ask(f"{group}: described when it is empty", describe(group), *_BOTH)
    yield from ask(f"{group}: listed", ListGroupsRequest(types_filter=("consumer",)), 5)
    yield from ask(f"{group}: deleted", DeleteGroupsRequest(groups_names=(group, f"{group}-id")), 2)


def _offsets(group: str) -> Script:
    """Commits of a member go by its epoch."""
    committed: Offsets = {0: (7, "")}
    for member, epoch in ((ALICE, 3), (ALICE, 2), (ALICE, 9), ("nobody", 3), ("", -1)):
        wanted = commit(group, committed, member=member, generation=epoch, topic=TOPIC)
        yield from ask(f"{group}: a commit of {member!r} in epoch {epoch}", wanted, 2, 8, 9)
        asked = fetch_offsets(group, 0, topic=TOPIC, member=member or None, epoch=epoch)
        yield from ask(f"{group}: offsets for {member!r} in epoch {epoch}", asked, 8, 9)
    partitions = (OffsetDeleteRequestPartition(partition_index=0),)
    for name in (TOPIC, OTHER):
        topics = (OffsetDeleteRequestTopic(name=name, partitions=partitions),)
        yield from ask(f"{group}: offsets of {name} are deleted", OffsetDeleteRequest(group_id=group, topics=topics))


def _two(group: str) -> Script:
    """The second member waits until the first has given up half."""
    yield from ask(f"{group}: the first joins", heartbeat(group, assignor="uniform"), 1)
    yield from ask(f"{group}: the second joins", heartbeat(group, BOB, assignor="uniform"), 1)
    yield from ask(f"{group}: described while it moves", describe(group), 1)
    first = same(group, ALICE, 1, owned=[(TOPIC, [0, 1, 2, 3])])
    yield from ask(f"{group}: the first has to revoke", first, 1)
    yield from ask(f"{group}: the second still waits", same(group, BOB, 2), 1)

    def kept(answers: Answers) -> Any:
        assignment = answers[f"{group}: the first has to revoke"].assignment
        owned = tuple(assignment.topic_partitions)
        return ConsumerGroupHeartbeatRequest(group_id=group, member_id=ALICE, member_epoch=1, topic_partitions=owned)

    yield Ask(f"{group}: the first has given up", 1, kept)
    yield from ask(f"{group}: the second gets its share", same(group, BOB, 2), 1)
    yield from ask(f"{group}: described when it is stable", describe(group), *_BOTH)
    yield from ask(f"{group}: the range assignor", heartbeat(group, BOB, 2, assignor="range", owned=None), 1)
    yield from ask(f"{group}: the second leaves", same(group, BOB, -1), 1)
    yield from ask(f"{group}: the first has all again", same(group, ALICE, 2), 1)
    yield from ask(f"{group}: described with one again", describe(group), 1)
    yield from ask(f"{group}: the first leaves", same(group, ALICE, -1), 1)


def _static(group: str) -> Script:
    yield from ask(f"{group}: an instance joins", heartbeat(group, instance="i"), 1)
    yield from ask(f"{group}: the instance joins a second time", heartbeat(group, BOB, instance="i"), 1)
    yield from ask(
        f"{group}: the instance leaves for a while", heartbeat(group, ALICE, -2, instance="i", topics=None), 1
    )
    yield from ask(f"{group}: described without it", describe(group), 1)
    yield from ask(f"{group}: the instance is back", heartbeat(group, BOB, instance="i"), 1)
    yield from ask(f"{group}: the old one goes on", heartbeat(group, ALICE, 1, instance="i", topics=None), 1)
    yield from ask(f"{group}: described with it", describe(group), 1)
    yield from ask(f"{group}: another member leaves as it", heartbeat(group, ALICE, -1, instance="i", topics=None), 1)
    yield from ask(f"{group}: it leaves", heartbeat(group, BOB, -1, instance="i", topics=None), 1)


def _other_kind(group: str, classic: str) -> Script:
    """Members of both kinds in a group of one kind."""
    yield from ask(f"{group}: a member joins", heartbeat(group), 1)
    yield from ask(f"{group}: a classic heartbeat", beat(group, ALICE, 1), 0, 4)
    yield from ask(f"{group}: a classic member leaves", leave(group, "nobody"), 0, 5)
    yield from joined(classic, "a member")
    yield from ask(f"{classic}: described as a consumer group", describe(classic), *_BOTH)
    who = f"{classic}: a member joins"
    yield Ask(f"{classic}: the member leaves", 5, lambda a: leave(classic, a[who].member_id))
    yield from ask(f"{classic}: becomes a consumer group", heartbeat(classic), 1)
    yield from ask(f"{classic}: described as what it is now", describe(classic), 1)
    yield from ask("groups of both kinds", ListGroupsRequest(), 5)
    yield from ask("groups of both kinds described", describe(group, classic, "nothing", group), 1)
    yield from ask(f"{group}: a classic member joins", join(group), 0, 9)
