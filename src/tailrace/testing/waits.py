"""Waits for a state of the cluster. A wait that ends without the state says what it saw last."""

import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from tailrace.client.blocking.admin import Admin
from tailrace.client.cluster_view import PartitionInfo, TopicInfo
from tailrace.client.loop_thread import runs_here
from tailrace.client.offsets import EARLIEST, LATEST, READ_COMMITTED
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.testing.servers import Connection

POLL_S = 0.05

_ACCOUNT_S = 3.0
"""The longest time for the account of groups at the end of a wait."""
_GROUPS = 5
"""The other groups that an account names."""
_DECIDED = ("PrepareCommit", "PrepareAbort")
"""The states of a transaction that is decided, and has not marked all its partitions."""


__tracebackhide__ = True  # pytest shows the line of the test


class Sight(NamedTuple):
    """The state that a look at the cluster has seen."""

    is_there: bool
    """Whether the wait is over."""
    text: str
    result: int = 0


def wait_until(
    wanted: str,
    look: Callable[[float], Sight],
    timeout: float,
    *,
    call: str,
    explain: Callable[[], list[str]] = list,
) -> int:
    """Look until the wanted state is there; returns the result of the last look.

    `look` gets the seconds that are left. A KafkaError of a look counts as what was seen. Raises TimeoutError that
    names the wanted state, what was seen last, and what `explain` knows at the end. `call` is the waiting call.
    """
    deadline = time.monotonic() + timeout
    while True:
        left_s = deadline - time.monotonic()
        try:
            seen = look(max(left_s, POLL_S))
        except KafkaError as fault:
            seen = Sight(False, str(fault))
        if seen.is_there:
            return seen.result
        if time.monotonic() + POLL_S > deadline:
            words = "; ".join([f"seen last: {seen.text}", *_explained(explain)])
            raise TimeoutError(f"waited {timeout:g} s until {wanted}; {words}{blocked_loop(call)}")
        time.sleep(POLL_S)


def _explained(explain: Callable[[], list[str]]) -> list[str]:
    try:
        return explain()
    except KafkaError:  # what was seen last says more
        return []


def blocked_loop(call: str, separator: str = "; ") -> str:
    """The words, after a separator, about the event loop that a call has blocked, if a loop runs in this thread."""
    if not runs_here():
        return ""
    form = f"`await asyncio.to_thread(cluster.{call}, ...)`"
    return f"{separator}the event loop of this thread was blocked meanwhile: in a coroutine say {form}"


def see_lag(servers: Connection, group: str, topic: str, at_most: int, left_s: float) -> Sight:
    """The lag of a group on a topic. A partition without a committed offset counts with all its records."""
    with _admin(servers, left_s) as admin:
        if not admin.existing_topics([topic]):
            return Sight(False, f"topic {topic!r} does not exist")
        partitions = admin.topic_partitions(topic)
        starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        ends = admin.list_offsets(dict.fromkeys(partitions, LATEST))
        committed = admin.group_offsets(group, partitions)
    lags, words = 0, []
    for partition in partitions:
        end, known = ends[partition].offset, committed.get(partition)
        done = starts[partition].offset if known is None or known.offset < 0 else known.offset
        lags += max(end - done, 0)
        has_committed = "nothing committed" if known is None or known.offset < 0 else f"committed {known.offset}"
        words.append(f"{partition} {has_committed} of {end}")
    return Sight(lags <= at_most, f"lag {lags}: {', '.join(words)}", lags)


def group_account(servers: Connection, group: str, topic: str) -> list[str]:
    """Words about the members of the group, and about other groups that have committed on the topic."""
    deadline = time.monotonic() + _ACCOUNT_S
    with _admin(servers, _ACCOUNT_S) as admin:
        listed = [found.group for found in admin.list_groups()]
        words = [_members(admin, group) if group in listed else f"group {group!r} does not exist"]
        partitions = admin.topic_partitions(topic) if admin.existing_topics([topic]) else []
        others = [
            repr(other)
            for other in (listed if partitions else ())
            if other != group and time.monotonic() < deadline and admin.group_offsets(other, partitions)
        ]
    if others:
        more = f" and {len(others) - _GROUPS} more" if len(others) > _GROUPS else ""
        words.append(f"other groups with offsets on this topic: {', '.join(others[:_GROUPS])}{more}")
    return words


def _members(admin: Admin, group: str) -> str:
    count = len(admin.describe_groups([group])[0].members)
    return f"the group has {count or 'no'} member{'' if count == 1 else 's'}"


def see_leader(servers: Connection, partition: TopicPartition, alive: Collection[int], left_s: float) -> Sight:
    """The leader of the partition; there if it is among the nodes that are alive."""
    with _admin(servers, left_s) as admin:
        topics = admin.existing_topics([partition.topic])
    if not topics:
        return Sight(False, f"topic {partition.topic!r} does not exist")
    found = _partitions(topics).get(partition)
    if found is None:
        return Sight(False, f"topic {partition.topic!r} has {len(topics[0].partitions)} partitions")
    leader = int(found.leader)
    if leader < 0:
        return Sight(False, f"{partition} has no leader{_replicas(found, alive)}")
    state = f"{partition} has the leader {leader}"
    return Sight(
        leader in alive, state if leader in alive else f"{state}, which does not run{_replicas(found, alive)}", leader
    )


def _replicas(partition: PartitionInfo, alive: Collection[int]) -> str:
    """Words about the replicas of a partition without a leader."""
    replicas = [int(replica) for replica in partition.replicas]
    where = f"; its replicas are on {', '.join(map(str, replicas))}"
    if set(replicas) & set(alive):
        return where
    more = "" if len(replicas) > 1 else ": replication_factor=3 of create_topic keeps more copies"
    return f"{where}, of which none runs{more}"


def see_brokers(servers: Connection, count: int, left_s: float) -> Sight:
    """The brokers that the controller does not fence; there if they are so many."""
    with _admin(servers, left_s) as admin:
        found = [int(broker.node_id) for broker in admin.list_brokers() if not broker.is_fenced]
    return Sight(len(found) >= count, f"brokers {_numbers(found)} serve", len(found))


def see_in_sync(servers: Connection, topic: str | None, left_s: float) -> Sight:
    """The replicas that are out of sync, of the topic or of all topics."""
    with _admin(servers, left_s) as admin:
        topics = admin.list_topics(include_internal=True) if topic is None else admin.existing_topics([topic])
    if topic is not None and not topics:
        return Sight(False, f"topic {topic!r} does not exist")
    behind = [
        f"{name} has {_numbers(found.in_sync_replicas)} of {_numbers(found.replicas)} in sync"
        for name, found in _partitions(topics).items()
        if found.leader < 0 or set(found.in_sync_replicas) != set(found.replicas)
    ]
    more = f" and {len(behind) - 5} more partitions" if len(behind) > 5 else ""
    return Sight(not behind, ", ".join(behind[:5]) + more)


def see_markers(servers: Connection, topic: str, left_s: float) -> Sight:
    """Whether a transaction is decided whose markers the topic lacks; there without such a transaction.

    A commit returns when the decision is written, and the coordinator marks the partitions after it: until then a
    read_committed reader does not see the records.
    """
    with _admin(servers, left_s) as admin:
        latest = dict.fromkeys(admin.topic_partitions(topic), LATEST)
        ends, stable = admin.list_offsets(latest), admin.list_offsets(latest, isolation_level=READ_COMMITTED)
        held = {name for name in latest if stable[name].offset < ends[name].offset}
        decided = admin.list_transactions(states=_DECIDED) if held else []
        for listed in decided:
            lacking = held.intersection(admin.describe_transaction(listed.transactional_id).partitions)
            if lacking:
                return Sight(False, f"{min(lacking)} has no marker of transaction {listed.transactional_id!r}")
    return Sight(True, "")


def _partitions(topics: Collection[TopicInfo]) -> dict[TopicPartition, PartitionInfo]:
    return {TopicPartition(topic.name, found.partition): found for topic in topics for found in topic.partitions}


def _numbers(replicas: Collection[int]) -> str:
    return ",".join(map(str, sorted(replicas))) or "none"


def _admin(servers: Connection, left_s: float) -> Admin:
    """A client whose calls end in time for another look."""
    timeout_ms = max(100, min(int(left_s * 1000), 5_000))
    return Admin(servers, bootstrap_timeout_ms=timeout_ms, default_api_timeout_ms=timeout_ms)
