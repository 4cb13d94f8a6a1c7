"""The laws of a group, for every world of members.

Of the coordinator's log:

1. "no partition has two owners": a partition is assigned to one member, or to be given up by one member.
2. "a partition is given on by its owner's word alone": a member loses a partition by a heartbeat of its own that does
   not name the partition, by leaving, or by its removal.
3. "a commit of an old epoch changes nothing": an accepted commit names the epoch of a member of the group.
4. "a commit counts from the partition's owner alone".

Of members and log together:

5. "two members read a partition only if the first is fenced": a member that reads a partition which is not its own in
   the log is refused at its next heartbeat and its next commit. So two members read a partition at once only while the
   first member is fenced and does not know that yet.
6. "what was released is committed": a member begins at or after the end of every release before.
7. "nothing is skipped": a member begins at or before the first record that no member has processed.
8. "a member that was not removed is not fenced": a lost answer, a close and another coordinator repeat no work. The
   coordinator knows a member's last two epochs: two answers that are lost in a row may fence the member.
9. "the group settles": without further faults each partition has one reader, all members are in the newest epoch, and
   nothing changes any more.

The laws of one member are in `members.reader`.
"""

from collections.abc import Collection, Mapping
from typing import Final

from simulation.harness.breach import Breach
from simulation.members.requests import CommitSent, GroupView, HeartbeatSent
from tailrace.client.group.consumer_member import Partitions, TopicIdPartition
from tailrace.coordinators.groups.consumer.group import NOT_THERE
from tailrace.model.errors import ErrorCode

TWO_OWNERS: Final = "no partition has two owners"
GIVEN_ON: Final = "a partition is given on by its owner's word alone"
OLD_EPOCH: Final = "a commit of an old epoch changes nothing"
NOT_ITS_OWNER: Final = "a commit counts from the partition's owner alone"
TWO_READERS: Final = "two members read a partition only if the first is fenced"
COMMITTED: Final = "what was released is committed"
SKIPPED: Final = "nothing is skipped"
FENCED: Final = "a member that was not removed is not fenced"
SETTLES: Final = "the group settles"

FENCES: Final = frozenset(
    (
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
    )
)


def check_one_owner(view: GroupView) -> None:
    """Law 1."""
    owner: dict[TopicIdPartition, str] = {}
    for name, partitions in view.holds.items():
        for place in partitions:
            if place in owner:
                raise Breach(TWO_OWNERS, f"{place} is of {owner[place]} and {name}")
            owner[place] = name


def check_given_on(
    before: GroupView, after: GroupView, word: HeartbeatSent | None, removed: Collection[str] = ()
) -> None:
    """Law 2, for the records of one decision. `word`: the heartbeat that was decided."""
    for name, held in before.holds.items():
        gone = held - after.holds.get(name, frozenset())
        if not gone or (word is not None and _gives_up(word, name, gone)) or name in removed:
            continue
        assert before.group is not None, "it has members"
        if name not in after.holds and before.group.members[name].epoch == NOT_THERE:
            continue  # the process of a static member is back under another id
        raise Breach(GIVEN_ON, f"{sorted(gone)} of {name}, at {word}")


def _gives_up(word: HeartbeatSent, name: str, gone: Partitions) -> bool:
    if word.member != name:
        return False
    return word.epoch < 0 or (word.owned is not None and gone.isdisjoint(word.owned))


def check_commit(view: GroupView, sent: CommitSent) -> None:
    """Laws 3 and 4, for a commit that the coordinator accepts in this state."""
    member = None if view.group is None else view.group.members.get(sent.member)
    if member is None or member.epoch != sent.epoch:
        raise Breach(OLD_EPOCH, f"{sent}, and the member is {member}")
    others = [place for place, _ in sent.offsets if place not in view.holds[sent.member]]
    if others:
        raise Breach(NOT_ITS_OWNER, f"{sent}, which has {sorted(view.holds[sent.member])}")


def check_start(place: TopicIdPartition, start: int, promised: Mapping[TopicIdPartition, int], done: int) -> None:
    """Laws 6 and 7, for a member that begins to read."""
    if start < promised.get(place, 0):
        raise Breach(COMMITTED, f"{place} is read from {start}, and was released at {promised[place]}")
    if start > done:
        raise Breach(SKIPPED, f"{place} is read from {start}, and {done} was not processed")
