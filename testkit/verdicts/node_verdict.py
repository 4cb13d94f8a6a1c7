"""The verdict on a node that was killed, from a history of its clients: every broken promise, as a sentence.

`replica_verdict` judges records, readers and groups, by the logs that a reader found after the last start. Two more
promises can be checked only by an administrator: a topic or setting that was acknowledged is there, and so is the last
acknowledged commit of the group.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from testkit.verdicts.replica_history import Event, FinalLog, Place, ReplicaHistory
from testkit.verdicts.replica_verdict import Evidence, broken_promises


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTheEnd:
    """The state of the node that an administrator sees after the last start."""

    topics: Mapping[str, int]
    """The number of partitions of each topic."""
    committed: Mapping[int, int]
    """The group's offsets, by partition."""
    setting: int
    """The value of the setting that was changed again and again."""


def node_faults(
    history: ReplicaHistory, end: AtTheEnd, *, checker: str, compacted: str, careful: str, key_of: Callable[[str], str]
) -> list[str]:
    """A sentence per promise that was broken.

    `checker` is the reader after the last start; `compacted` is the topic that keeps only last values; `careful` has
    the first letters of the producers that may never fail, since they repeat failed records.
    """
    groups = {reader: "the group" for reader in history.reads if reader != checker}
    evidence = Evidence(
        history=history,
        logs=logs_of(history, checker),
        replicas={},
        compacted=frozenset({compacted}),
        groups=groups,
        unfinished=frozenset(groups.values()),
        careful=frozenset(producer for producer in history.sent if producer[0] in careful),
        key_of=key_of,
    )
    return [*broken_promises(evidence), *_commit_faults(history, end), *_change_faults(history.changes, end)]


def logs_of(history: ReplicaHistory, reader: str) -> dict[Place, FinalLog]:
    """The logs that this reader has read, each from the offset of its assignment on."""
    starts: dict[Place, int] = {}
    values: dict[Place, dict[int, str]] = defaultdict(dict)
    keys: dict[Place, dict[int, str]] = defaultdict(dict)
    for event in history.reads[reader]:
        place = event["topic"], event["partition"]
        if event["op"] == "assigned":
            starts[place] = event["offset"]
        else:
            values[place].update(zip(event["offsets"], event["values"], strict=True))
            found = zip(event["offsets"], event["keys"], strict=True)
            keys[place].update({offset: key for offset, key in found if key is not None})
    return {
        place: FinalLog(start, max(values[place], default=start - 1) + 1, values[place], keys[place])
        for place, start in starts.items()
    }


def _commit_faults(history: ReplicaHistory, end: AtTheEnd) -> Iterator[str]:
    committed: dict[int, int] = {}
    """The offset of the last acknowledged commit by partition; a partition without a commit is absent, since nothing
    promises offset 0 there."""
    possible: dict[int, int] = defaultdict(int)
    for event in (event for events in history.reads.values() for event in events):
        if event["op"] in ("committed", "commit-unknown"):
            partition, offset = event["partition"], event["offset"]
            possible[partition] = max(possible[partition], offset)
            if event["op"] == "committed":
                committed[partition] = max(committed.get(partition, 0), offset)
    for partition in sorted(committed.keys() | end.committed.keys()):
        if not committed.get(partition, 0) <= end.committed.get(partition, -1) <= possible[partition]:
            last, there = committed.get(partition), end.committed.get(partition)
            yield f"group: {last} was committed for {partition}, {there} is there"


def _change_faults(events: Iterable[Event], end: AtTheEnd) -> Iterator[str]:
    counts: dict[str, int] = {}
    may_be_gone: set[str] = set()
    must_be_gone: set[str] = set()
    setting = end.setting
    for event in events:
        match event["op"]:
            case "create" | "enlarge":
                counts[event["topic"]] = event["count"]
            case "delete":
                must_be_gone.add(event["topic"])
            case "delete-unknown":
                may_be_gone.add(event["topic"])
            case "set":
                setting = event["value"]
    for topic, count in counts.items():
        if topic in must_be_gone:
            if topic in end.topics:
                yield f"admin: {topic} was deleted and is there"
        elif topic not in may_be_gone and end.topics.get(topic, 0) < count:
            yield f"admin: {topic} was made with {count} partitions and has {end.topics.get(topic, 0)}"
    if end.setting < setting:
        yield f"admin: the setting was {setting} and is {end.setting}"


def figures(history: ReplicaHistory, deaths: int) -> str:
    """The amount of tested work, in a line."""
    events = (*history.changes, *(event for events in history.reads.values() for event in events))
    ops = Counter(str(event["op"]) for event in events)
    changes = sum(ops[op] for op in ("create", "enlarge", "delete", "set"))
    return (
        f"{deaths} deaths, {history.acknowledged} records acknowledged, {history.unknown.total()} unknown,"
        f" {history.polled} read, {ops['committed']} commits, {ops['assigned']} assignments,"
        f" {changes} changes by the administrator"
    )
