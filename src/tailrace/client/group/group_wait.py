"""The wait of a member that has no partitions for another member, which does not answer or does not let go.

A member that is killed stays in its group until its session ends, 45 s by default. Another member gets nothing until
then, by either protocol: a classic group waits for each member to join again, a group of KIP-848 for the partitions.
The waiting member asks the coordinator for the group when it has waited for ten seconds, and again later. Only a
Tailrace coordinator tells for how long a member has been silent (`GroupDetails`); from another server the text has no
more than the state of the group and the owners of the partitions that are to come.
"""

import asyncio
from typing import Final

from tailrace.client.group.described_groups import DescribedMember, GroupDescription, describe_groups
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.groups import MemberDetails

WAIT_MS: Final = 10_000
"""The wait before the first look at the group. Further looks come less and less often."""

SILENT_MS: Final = 10_000
"""The silence of a member that is worth a warning, or a fifth of its session: two heartbeats are missing."""

_LONGEST_PAUSE_MS: Final = 60_000
"""The longest pause between two looks that find no reason: the group may have more members than partitions."""

_REBALANCING: Final = ("PreparingRebalance", "CompletingRebalance")


class GroupWait:
    """The wait of one member. On its event loop only."""

    def __init__(self, router: Router, group: str) -> None:
        self._router = router
        self._group = group
        self._pause_ms = WAIT_MS
        self._next_look_ms: int | None = None
        self._look: asyncio.Task[None] | None = None
        self.trouble: KafkaError | None = None
        """The member that is waited for; None while no wait is known."""
        self.looks = 0
        """The number of looks at the group."""

    def on_poll(self, member_id: str, *, is_waiting: bool) -> None:
        """Note at a poll whether the member is without partitions."""
        if not is_waiting:
            self.end()
            return
        now_ms = self._router.now_ms()
        if self._next_look_ms is None:
            self._next_look_ms, self._pause_ms = now_ms + WAIT_MS, WAIT_MS
        elif now_ms >= self._next_look_ms and self._look is None:
            self._pause_ms = WAIT_MS if self.trouble else min(self._pause_ms * 2, _LONGEST_PAUSE_MS)
            self._next_look_ms = now_ms + self._pause_ms
            self._look = asyncio.get_running_loop().create_task(self._look_at_group(member_id))

    def end(self) -> None:
        """Note that the member waits no more."""
        self.trouble = self._next_look_ms = None
        if self._look is not None:
            self._look.cancel()
            self._look = None

    async def _look_at_group(self, member_id: str) -> None:
        try:
            (group,) = await describe_groups(self._router, (self._group,))
        except KafkaError:
            self.trouble = None  # a coordinator that cannot be reached is a trouble of its own
        else:
            text = waiting_text(group, member_id)
            self.trouble = None if text is None else KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, text)
        self.looks += 1
        self._look = None


def waiting_text(group: GroupDescription, member_id: str) -> str | None:
    """The text about the member for which this member waits; None if the description shows no such member."""
    others = {member.member_id: member for member in group.members if member.member_id != member_id}
    is_rebalancing = group.state in _REBALANCING
    if group.details is not None:
        known = [each for each in group.details.members if each.member_id in others and _is_silent(each)]
        silent = [each for each in known if is_rebalancing or others[each.member_id].assignment]
        if not silent:
            return None
        most = min(silent, key=lambda each: each.silent_ms - each.session_timeout_ms)
        return _about_silence(
            others[most.member_id], most, count=len(silent), is_classic=others[most.member_id].epoch is None
        )
    if is_rebalancing:
        return (
            "the group waits for a member that does not answer or is not polled: until the member joins again, or its"
            " session.timeout.ms (45000 by default) or max.poll.interval.ms ends; close() leaves a group at once"
        )
    own = next((member for member in group.members if member.member_id == member_id), None)
    coming = frozenset(() if own is None else own.target)
    owner = next((member for member in others.values() if coming.intersection(member.assignment)), None)
    if owner is None:
        return None
    return (
        f"the group waits for member {_named(owner)} to give partitions up: until it answers, or until its session ends"
        " (group.consumer.session.timeout.ms, 45000 by default; close() leaves a group at once)"
    )


def _is_silent(details: MemberDetails) -> bool:
    return details.silent_ms >= max(SILENT_MS, details.session_timeout_ms // 5)


def _about_silence(member: DescribedMember, details: MemberDetails, *, count: int, is_classic: bool) -> str:
    setting = "session.timeout.ms of that member" if is_classic else "group.consumer.session.timeout.ms"
    more = "" if count == 1 else f", and for {count - 1} more"
    left_s = max(details.session_timeout_ms - details.silent_ms, 0) / 1000
    return (
        f"the group waits for member {_named(member)}{more}, silent for {details.silent_ms / 1000:.0f} s:"
        f" until its session of {details.session_timeout_ms} ms ends ({setting}), in {left_s:.0f} s; close() leaves a"
        " group at once"
    )


def _named(member: DescribedMember) -> str:
    """The client id and the address, as the coordinator shows them."""
    return f"{member.client_id!r} at {member.host.lstrip('/')}" if member.host else repr(member.client_id)
