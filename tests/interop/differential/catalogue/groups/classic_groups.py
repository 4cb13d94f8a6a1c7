"""Classic groups: joining, syncing, heartbeats and leaving, in order and out of order."""

from collections.abc import Callable
from functools import partial
from typing import Any

from interop.differential.script import Answers, Ask, Receive, Script, Send, ask, every_version, key_versions
from tailrace.client.group.classic_member import encode_subscription
from tailrace.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from tailrace.protocol.messages.membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

_JOIN = key_versions(JoinGroupRequest)
_SYNC = key_versions(SyncGroupRequest)
_BEAT = key_versions(HeartbeatRequest)
_LEAVE = key_versions(LeaveGroupRequest)
_REBALANCE_IN_PROGRESS = 27
# Bytes that are no subscription leave a JoinGroup to Apache Kafka 4.1 without an answer.
SUBSCRIPTION = encode_subscription(["wanted"])
OTHER_SUBSCRIPTION = encode_subscription(["wanted", "wanted-too"])


def classic_groups() -> Script:
    yield from _before_any_group()
    for version in (0, 3, 4, 5, 7, 9):
        yield from _one_member(f"one-{version}", version)
    yield from _wrong_words("words")
    yield from _two_members("two")
    yield from _static_members("static")
    yield from _described()


def join(
    group: str,
    member: str = "",
    *,
    instance: str | None = None,
    session_ms: int = 30_000,
    rebalance_ms: int = 30_000,
    kind: str = "consumer",
    protocols: tuple[tuple[str, bytes], ...] = (("range", SUBSCRIPTION),),
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member,
        group_instance_id=instance,
        protocol_type=kind,
        protocols=tuple(JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols),
    )


def sync(
    group: str,
    member: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
    *,
    instance: str | None = None,
    kind: str | None = "consumer",
    protocol: str | None = "range",
) -> SyncGroupRequest:
    given = (assignments or {}).items()
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
        protocol_type=kind,
        protocol_name=protocol,
        assignments=tuple(SyncGroupRequestAssignment(member_id=name, assignment=data) for name, data in given),
    )


def beat(group: str, member: str, generation: int, instance: str | None = None) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member, group_instance_id=instance)


def leave(group: str, member: str, instance: str | None = None) -> LeaveGroupRequest:
    """LeaveGroup in the forms of all versions."""
    identity = MemberIdentity(member_id=member, group_instance_id=instance)
    return LeaveGroupRequest(group_id=group, member_id=member, members=(identity,))


def member_of(step: str) -> Callable[[Answers], str]:
    """The member id in the answer to this step."""
    return lambda answers: str(answers[step].member_id)


def joined(group: str, who: str, version: int = 9, **settings: Any) -> Script:
    """A member joins an empty group, with the second JoinGroup that KIP-394 asks for, and gets its assignment."""
    connection = settings.pop("connection", "main")
    first = f"{group}: {who} asks to join"
    yield from ask(first, join(group, **settings), version, connection=connection)
    if version >= 4 and settings.get("instance") is None:
        again = f"{group}: {who} joins"
        yield Ask(again, version, lambda a: join(group, a[first].member_id, **settings), connection)
        first = again

    def assign(answers: Answers) -> SyncGroupRequest:
        answer = answers[first]
        return sync(group, answer.member_id, answer.generation_id, {answer.member_id: b"all of it"})

    yield Ask(f"{group}: {who} syncs", 3, assign, connection)


def _before_any_group() -> Script:
    yield from ask("groups before there are any", ListGroupsRequest(), *every_version(ListGroupsRequest))
    for member in ("", "nobody"):
        yield from ask(
            f"heartbeat of {member!r} in no group", beat("none", member, 1), *every_version(HeartbeatRequest)
        )
        yield from ask(f"sync of {member!r} in no group", sync("none", member, 1), *every_version(SyncGroupRequest))
        yield from ask(f"{member!r} leaves no group", leave("none", member), *every_version(LeaveGroupRequest))
    yield from ask("sync in no group without a protocol", sync("none", "nobody", 1, kind=None, protocol=None), 4, 5)
    yield from ask("heartbeat in a group without a name", beat("", "nobody", 1), *_BEAT)
    yield from ask("sync in a group without a name", sync("", "nobody", 1), *_SYNC)
    yield from ask("leaving a group without a name", leave("", "nobody"), *_LEAVE)
    yield from ask("joining a group without a name", join(""), *_JOIN)
    yield from ask("joining as an unknown member", join("none", "nobody"), *_JOIN)
    for session_ms in (-1, 0, 5_999, 1_800_001):
        yield from ask(f"joining with a session of {session_ms}", join("none", session_ms=session_ms), *_JOIN)
    yield from ask("joining without protocols", join("none", protocols=()), *_JOIN)
    yield from ask("joining without a protocol type", join("none", kind=""), *_JOIN)
    for number, instance in enumerate(("", ".", "a b", "x" * 250)):
        yield from ask(f"joining as instance {instance[:9]!r}", join(f"named-{number}", instance=instance), 5, 9)
    yield from ask("a group that is not there", DescribeGroupsRequest(groups=("missing",)), 0, 3, 5, 6)
    yield from ask("a group that is not there is deleted", DeleteGroupsRequest(groups_names=("missing",)), 0, 1, 2)
    yield from ask("a group without a name", DescribeGroupsRequest(groups=("",)), 0, 5, 6)
    yield from ask("a group without a name is deleted", DeleteGroupsRequest(groups_names=("",)), 0, 2)
    yield from ask("a group that only refused joins have named", DescribeGroupsRequest(groups=("none",)), 5, 6)
    yield from ask(
        "a group that only refused joins have named is deleted", DeleteGroupsRequest(groups_names=("none",)), 2
    )


def _one_member(group: str, version: int) -> Script:
    yield from joined(group, "a member", version)
    who = f"{group}: a member " + ("joins" if version >= 4 else "asks to join")

    def as_member(build: Callable[[str, int], Any]) -> Callable[[Answers], Any]:
        return lambda answers: build(answers[who].member_id, answers[who].generation_id)

    yield from ask(f"{group}: a heartbeat", as_member(lambda m, g: beat(group, m, g)), *_BEAT)
    for wrong in (-1, 1, 100):
        yield from ask(
            f"{group}: a heartbeat in generation + {wrong}",
            as_member(partial(lambda w, m, g: beat(group, m, g + w), wrong)),
            *_BEAT,
        )
        yield from ask(
            f"{group}: a sync in generation + {wrong}",
            as_member(partial(lambda w, m, g: sync(group, m, g + w), wrong)),
            *_SYNC,
        )
    yield from ask(f"{group}: a heartbeat of a stranger", as_member(lambda m, g: beat(group, "nobody", g)), *_BEAT)
    yield from ask(f"{group}: a sync of a stranger", as_member(lambda m, g: sync(group, "nobody", g)), *_SYNC)
    yield from ask(
        f"{group}: a sync once more", as_member(lambda m, g: sync(group, m, g)), *every_version(SyncGroupRequest)
    )
    for kind, protocol in (("connect", "range"), ("consumer", "other"), (None, "range"), ("consumer", None)):
        other = as_member(partial(lambda k, p, m, g: sync(group, m, g, kind=k, protocol=p), kind, protocol))
        yield from ask(f"{group}: a sync for {kind} and {protocol}", other, 5)
    yield from ask(
        f"{group}: a member joins with other protocols", join(group, protocols=(("other", SUBSCRIPTION),)), *_JOIN
    )
    yield from ask(f"{group}: a member joins of another kind", join(group, kind="connect"), *_JOIN)
    yield from ask(f"{group}: described", DescribeGroupsRequest(groups=(group,)), *every_version(DescribeGroupsRequest))
    yield from ask(f"{group}: deleted while it has a member", DeleteGroupsRequest(groups_names=(group,)), 0, 2)
    yield from ask(f"{group}: a stranger leaves", leave(group, "nobody"), *_LEAVE)
    yield from ask(
        f"{group}: the member leaves", as_member(lambda m, g: leave(group, m)), version if version < 5 else 5
    )
    yield from ask(f"{group}: the member leaves again", as_member(lambda m, g: leave(group, m)), *_LEAVE)
    yield from ask(f"{group}: a heartbeat of a former member", as_member(lambda m, g: beat(group, m, g)), *_BEAT)
    yield from ask(f"{group}: described when it is empty", DescribeGroupsRequest(groups=(group,)), 0, 4, 6)
    yield from ask(f"{group}: deleted", DeleteGroupsRequest(groups_names=(group,)), 2)
    yield from ask(f"{group}: described when it is gone", DescribeGroupsRequest(groups=(group,)), 0, 4, 6)


def _wrong_words(group: str) -> Script:
    """Rejoining with and without a change, and a leader's assignment for a stranger."""
    yield from joined(group, "a member")
    who = f"{group}: a member joins"
    yield Ask(f"{group}: it joins again as it was", 9, lambda a: join(group, a[who].member_id), "main")
    changed = (("range", OTHER_SUBSCRIPTION),)
    again = f"{group}: it joins again with a change"
    yield Ask(again, 9, lambda a: join(group, a[who].member_id, protocols=changed), "main")
    yield Ask(
        f"{group}: a heartbeat before the sync", 4, lambda a: beat(group, a[who].member_id, a[again].generation_id)
    )
    yield from ask(f"{group}: described before the sync", DescribeGroupsRequest(groups=(group,)), 4, 6)

    def strangers(answers: Answers) -> SyncGroupRequest:
        given = {"nobody": b"all of it"}
        return sync(group, answers[who].member_id, answers[again].generation_id, given)

    yield Ask(f"{group}: an assignment for a stranger", 5, strangers)
    yield from ask(f"{group}: described after it", DescribeGroupsRequest(groups=(group,)), 4, 6)
    several = (("range", SUBSCRIPTION), ("roundrobin", SUBSCRIPTION))
    yield Ask(f"{group}: it joins with two protocols", 9, lambda a: join(group, a[who].member_id, protocols=several))
    members = (MemberIdentity(member_id="nobody"), MemberIdentity(member_id=""))
    yield from ask(f"{group}: two strangers leave", LeaveGroupRequest(group_id=group, members=members), 3, 5)
    yield from ask(f"{group}: an empty list leaves", LeaveGroupRequest(group_id=group, members=()), 3, 5)
    yield Ask(f"{group}: the member leaves", 5, lambda a: leave(group, a[who].member_id))


def _two_members(group: str) -> Script:
    """The second member makes the first join again; both wait for each other on connections of their own."""
    yield from joined(group, "the first", connection="first")
    first, second = member_of(f"{group}: the first joins"), member_of(f"{group}: the second asks to join")
    yield from ask(f"{group}: the second asks to join", join(group), 9, connection="second")
    yield Send(f"{group}: the second joins", 9, lambda a: join(group, second(a)), "second")
    due: dict[str, Any] = {"until": lambda answer: answer.error_code == _REBALANCE_IN_PROGRESS}
    yield Ask(f"{group}: the first gets the rebalance", 4, lambda a: beat(group, first(a), 1), "first", **due)
    yield Ask(f"{group}: the first syncs as if nothing were", 5, lambda a: sync(group, first(a), 1), "first")
    yield from ask(f"{group}: described while it waits", DescribeGroupsRequest(groups=(group,)), 0, 4, 6)
    yield from ask(f"{group}: listed while it waits", ListGroupsRequest(states_filter=("PreparingRebalance",)), 4, 5)
    yield Send(f"{group}: the first joins again", 9, lambda a: join(group, first(a)), "first")
    yield Receive(f"{group}: the first joins again")
    yield Receive(f"{group}: the second joins")
    yield Send(f"{group}: the second syncs", 5, lambda a: sync(group, second(a), 2), "second")
    yield Ask(f"{group}: described while the leader thinks", 6, lambda _: DescribeGroupsRequest(groups=(group,)))

    def assign(answers: Answers) -> SyncGroupRequest:
        leader = answers[f"{group}: the second joins"].leader
        return sync(group, leader, 2, {first(answers): b"for the first", second(answers): b"for the second"})

    yield Ask(f"{group}: the leader syncs", 5, assign, "first")
    yield Receive(f"{group}: the second syncs")
    yield from ask(f"{group}: described with two members", DescribeGroupsRequest(groups=(group,)), 0, 3, 4, 6)
    yield Ask(f"{group}: the follower joins as it was", 9, lambda a: join(group, second(a)), "second")
    yield Ask(f"{group}: the second leaves", 4, lambda a: leave(group, second(a)), "second")
    yield Ask(f"{group}: the first gets the rebalance again", 4, lambda a: beat(group, first(a), 2), "first", **due)
    yield Ask(f"{group}: the first joins alone", 9, lambda a: join(group, first(a)), "first")
    yield Ask(f"{group}: the first leaves", 4, lambda a: leave(group, first(a)), "first")


def _static_members(group: str) -> Script:
    yield from joined(group, "instance a", 9, instance="a")
    first, second = (member_of(f"{group}: instance a {verb}") for verb in ("asks to join", "starts anew"))
    yield Ask(f"{group}: a heartbeat of the instance", 4, lambda a: beat(group, first(a), 1, "a"))
    yield Ask(f"{group}: a heartbeat of another instance", 4, lambda a: beat(group, first(a), 1, "b"))
    yield from ask(f"{group}: instance a starts anew", join(group, instance="a"), 9)
    described = DescribeGroupsRequest(groups=(group,))
    yield from ask(f"{group}: described with a static member", described, 3, 4, 6)
    for what, build in {
        "a heartbeat": lambda m: beat(group, m, 1, "a"),
        "a sync": lambda m: sync(group, m, 1, instance="a"),
        "a join": lambda m: join(group, m, instance="a"),
        "leaving": lambda m: leave(group, m, "a"),
    }.items():
        newest = {"a heartbeat": 4, "a sync": 5, "a join": 9, "leaving": 5}[what]
        yield Ask(
            f"{group}: {what} of the instance that was replaced", newest, partial(lambda b, a: b(first(a)), build)
        )
        yield Ask(f"{group}: {what} of an instance without a member", newest, partial(lambda b, a: b("nobody"), build))
    yield Ask(f"{group}: a heartbeat of the new instance", 4, lambda a: beat(group, second(a), 1, "a"))
    yield Ask(f"{group}: a sync of the new instance", 5, lambda a: sync(group, second(a), 1, instance="a"))
    yield from ask(f"{group}: an instance that is unknown leaves", leave(group, "", "zzz"), 3, 5)
    yield from ask(f"{group}: instance a is removed", leave(group, "", "a"), 5)
    yield from ask(f"{group}: instance a is removed again", leave(group, "", "a"), 3, 5)
    yield from ask(f"{group}: described without it", described, 4, 6)


def _described() -> Script:
    filters = (("Empty",), ("Stable",), ("empty",), ("NoSuchState",), ("Dead", "Empty"), ())
    for states in filters:
        yield from ask(f"groups in {states}", ListGroupsRequest(states_filter=states), 4, 5)
    for types in (("classic",), ("consumer",), ("Classic",), ("share",), ("nothing",)):
        yield from ask(f"groups of {types}", ListGroupsRequest(types_filter=types), 5)
    yield from ask("groups of all kinds", ListGroupsRequest(), *every_version(ListGroupsRequest))
    twice = DescribeGroupsRequest(groups=("two", "two"), include_authorized_operations=True)
    yield from ask("a group described twice", twice, 3, 6)
    yield from ask("no group described", DescribeGroupsRequest(groups=()), 0, 6)
    yield from ask("groups deleted, one twice", DeleteGroupsRequest(groups_names=("two", "two", "missing")), 2)
