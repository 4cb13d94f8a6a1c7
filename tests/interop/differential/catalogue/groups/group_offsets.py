"""OffsetCommit, OffsetFetch and OffsetDelete, by members of a group and by readers without a group."""

from collections.abc import Callable
from functools import partial

from interop.differential.catalogue.groups.classic_groups import OTHER_SUBSCRIPTION, join, joined, leave
from interop.differential.catalogue.preparation import created
from interop.differential.script import Answers, Ask, Script, ask
from tailrace.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

TOPIC = "group-offsets"
_COMMIT = (2, 5, 6, 7, 9)
_FETCH = (1, 2, 5, 7, 8, 9)
Offsets = dict[int, tuple[int, str | None]]


def group_offsets() -> Script:
    yield from created(TOPIC, 3)
    yield from _readers_without_a_group("loose")
    yield from _members("tight")
    yield from _deleted("loose", "tight")


def commit(
    group: str,
    offsets: Offsets,
    *,
    member: str = "",
    generation: int = -1,
    topic: str = TOPIC,
    instance: str | None = None,
    epoch: int = -1,
) -> OffsetCommitRequest:
    partitions = tuple(
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_leader_epoch=epoch, committed_metadata=note
        )
        for index, (offset, note) in offsets.items()
    )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=instance,
        topics=(OffsetCommitRequestTopic(name=topic, partitions=partitions),),
    )


def fetch_offsets(
    group: str,
    *indexes: int,
    topic: str = TOPIC,
    member: str | None = None,
    epoch: int = -1,
    stable: bool = False,
    everything: bool = False,
) -> OffsetFetchRequest:
    """OffsetFetch in the forms of all versions."""
    old = (OffsetFetchRequestTopic(name=topic, partition_indexes=indexes),)
    new = (OffsetFetchRequestTopics(name=topic, partition_indexes=indexes),)
    asked = OffsetFetchRequestGroup(
        group_id=group, member_id=member, member_epoch=epoch, topics=None if everything else new
    )
    return OffsetFetchRequest(
        group_id=group, topics=None if everything else old, groups=(asked,), require_stable=stable
    )


def _readers_without_a_group(group: str) -> Script:
    yield from ask("offsets of a group that is not there", fetch_offsets(group, 0, 1), *_FETCH)
    yield from ask("all offsets of a group that is not there", fetch_offsets(group, everything=True), 2, 5, 8, 9)
    for version in _COMMIT:
        yield from ask("a reader commits", commit(group, {0: (version, "note"), 1: (2**40, "")}, epoch=3), version)
        yield from ask("what the reader has committed", fetch_offsets(group, 0, 1, 2), *_FETCH)
    yield from ask("a null note", commit(group, {0: (5, None)}), *_COMMIT)
    yield from ask("offsets with a null note", fetch_offsets(group, 0), *_FETCH)
    yield from ask("a note of 4096 bytes", commit(group, {0: (5, "n" * 4096)}), 2, 9)
    yield from ask("a note of 4097 bytes", commit(group, {0: (5, "n" * 4097), 1: (6, "")}), 2, 9)
    yield from ask("an offset below 0", commit(group, {0: (-1, ""), 1: (-5, "")}), 2, 9)
    yield from ask("offsets after all that", fetch_offsets(group, 0, 1), 5, 9)
    yield from ask("an unknown partition", commit(group, {0: (1, ""), 9: (1, "")}), *_COMMIT)
    yield from ask("partition -1", commit(group, {-1: (1, "")}), 2, 9)
    yield from ask("an unknown topic", commit(group, {0: (1, "")}, topic="nowhere"), *_COMMIT)
    yield from ask("a group without a name", commit("", {0: (1, "")}), 2, 9)
    yield from ask("a commit of nothing", OffsetCommitRequest(group_id=group, member_id="", topics=()), 2, 9)
    yield from ask("a generation without a group", commit("nothing", {0: (1, "")}, member="x", generation=3), *_COMMIT)
    yield from ask(
        "a generation in a group without members", commit(group, {0: (1, "")}, member="x", generation=3), 2, 9
    )
    yield from ask("a member in a group without members", commit(group, {0: (1, "")}, member="x"), 2, 9)
    yield from ask("an instance in a group without members", commit(group, {0: (1, "")}, instance="i"), 7, 9)
    yield from ask("offsets of partitions that are not there", fetch_offsets(group, 8, -1), *_FETCH)
    yield from ask("offsets of an unknown topic", fetch_offsets(group, 0, topic="nowhere"), *_FETCH)
    yield from ask("offsets of a group without a name", fetch_offsets("", 0), *_FETCH)
    yield from ask("stable offsets", fetch_offsets(group, 0, stable=True), 7, 8, 9)
    yield from ask("all offsets", fetch_offsets(group, everything=True), 2, 5, 8, 9)
    yield from ask("no offsets", fetch_offsets(group), *_FETCH)
    several = tuple(fetch_offsets(name, 0).groups[0] for name in (group, "nothing", group))
    yield from ask("offsets of several groups", OffsetFetchRequest(groups=several), 8, 9)
    yield from ask("offsets of no group", OffsetFetchRequest(groups=()), 8, 9)
    for member, epoch in (("x", 1), ("", 0), (None, 5), ("x", -1)):
        yield from ask(
            f"offsets for member {member!r} in epoch {epoch}", fetch_offsets(group, 0, member=member, epoch=epoch), 9
        )


def _members(group: str) -> Script:
    yield from joined(group, "a member")
    who = f"{group}: a member joins"

    def as_member(build: Callable[[str, int], OffsetCommitRequest]) -> Callable[[Answers], OffsetCommitRequest]:
        return lambda answers: build(answers[who].member_id, answers[who].generation_id)

    committed: Offsets = {0: (7, "from a member")}
    good = as_member(lambda m, g: commit(group, committed, member=m, generation=g))
    yield from ask("a member commits", good, *_COMMIT)
    for wrong in (-1, 1, 50):
        other = as_member(partial(lambda w, m, g: commit(group, committed, member=m, generation=g + w), wrong))
        yield from ask(f"a member commits in generation + {wrong}", other, *_COMMIT)
    stranger = as_member(lambda m, g: commit(group, committed, member="no-such-member", generation=g))
    yield from ask("a stranger commits", stranger, 2, 9)
    yield from ask("a reader commits in a group with members", commit(group, committed), 2, 9)
    yield from ask("a member without a generation", as_member(lambda m, g: commit(group, committed, member=m)), 2, 9)
    yield from ask(
        "a generation without a member", as_member(lambda m, g: commit(group, committed, generation=g)), 2, 9
    )
    instance = as_member(lambda m, g: commit(group, committed, member=m, generation=g, instance="i"))
    yield from ask("a member commits as an instance that is not there", instance, 7, 9)
    yield from ask("offsets of a group with members", fetch_offsets(group, 0, 1), *_FETCH)
    again = f"{group}: it joins again"
    changed = (("range", OTHER_SUBSCRIPTION),)
    yield Ask(again, 9, lambda a: join(group, a[who].member_id, protocols=changed))
    yield from ask(
        "a commit before the sync",
        as_member(lambda m, g: commit(group, committed, member=m, generation=g + 1)),
        *_COMMIT,
    )
    yield from ask("a commit of the generation before", good, *_COMMIT)


def _delete(group: str, *indexes: int, topic: str = TOPIC) -> OffsetDeleteRequest:
    partitions = tuple(OffsetDeleteRequestPartition(partition_index=index) for index in indexes)
    return OffsetDeleteRequest(group_id=group, topics=(OffsetDeleteRequestTopic(name=topic, partitions=partitions),))


def _deleted(loose: str, tight: str) -> Script:
    yield from ask("offsets of no group are deleted", _delete("nothing", 0))
    yield from ask("offsets of a group without a name are deleted", _delete("", 0))
    yield from ask("an offset is deleted", _delete(loose, 0))
    yield from ask("an offset is deleted again", _delete(loose, 0))
    yield from ask("offsets after a deletion", fetch_offsets(loose, 0, 1), 5, 9)
    yield from ask("offsets of unknown partitions are deleted", _delete(loose, 9, -1))
    yield from ask("offsets of an unknown topic are deleted", _delete(loose, 0, topic="nowhere"))
    yield from ask("no offset is deleted", OffsetDeleteRequest(group_id=loose, topics=()))
    yield from ask("offsets of a group with members are deleted", _delete(tight, 0))
    who = f"{tight}: a member joins"
    yield Ask("the member leaves", 5, lambda a: leave(tight, a[who].member_id))
    yield from ask("offsets of a group without members are deleted", _delete(tight, 0))
