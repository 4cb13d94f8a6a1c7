"""The refusal of a change that only a group without members takes, with the members that stand in its way."""

import shlex
from typing import Final

from tailrace.client.admin.group_health import MemberHealth, verdict
from tailrace.client.group.described_groups import DescribedMember, GroupDescription
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.groups import MemberDetails

_MOST_NAMED: Final = 3
"""The members that a refusal names; it counts the others."""


def refuse_members(group: GroupDescription) -> None:
    """Raises KafkaError NON_EMPTY_GROUP if the group has members.

    The error names the members. A Tailrace coordinator knows the last heartbeats, and so how long a killed member is
    still a member.
    """
    if not group.members:
        return
    found = {} if group.details is None else {member.member_id: member for member in group.details.members}
    known = {member.member_id: found.get(member.member_id) for member in group.members}
    are_gone = all(_is_gone(member) for member in known.values())
    what = "silent members; wait until their sessions end" if are_gone else "members; stop them first"
    named = [_line(member, known[member.member_id]) for member in group.members[:_MOST_NAMED]]
    if len(group.members) > _MOST_NAMED:
        more = len(group.members) - _MOST_NAMED
        named.append(f"and {more} more (`tailrace groups describe {shlex.quote(group.group)} --members`)")
    raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group.group!r} has {what}: {', '.join(named)}")


def _is_gone(member: MemberDetails | None) -> bool:
    return verdict(member, (), 0) is MemberHealth.GONE


def _line(member: DescribedMember, known: MemberDetails | None) -> str:
    name = f"member {member.member_id} ({member.client_id}, {member.host})"
    if known is None:
        return name
    silent, left_ms = f"{known.silent_ms / 1000:.3g} s", known.session_timeout_ms - known.silent_ms
    end = f"its session ends in {left_ms / 1000:.3g} s" if left_ms > 0 else "its session ends now"
    if _is_gone(known):
        return f"{name} has been silent for {silent}, and {end}"
    return f"{name}, whose last heartbeat was {silent} ago; if it was killed, {end}"
