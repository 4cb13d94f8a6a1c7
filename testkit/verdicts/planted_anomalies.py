"""Anomalies that are planted into the evidence of a run without a fault: the verdict must name the kind of every
anomaly.

Each planter takes evidence and returns a changed copy. It needs a topic of each sort: plain, compacted, transactional;
readers alone and in a group.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from testkit.verdicts.replica_history import Event, FinalLog, Place, number_of
from testkit.verdicts.replica_verdict import Evidence

Plant = Callable[[Evidence], Evidence]


def _plain(evidence: Evidence) -> Place:
    """The plain partition with the most records that readers read."""
    special = evidence.compacted | evidence.transactional
    read = {(event["topic"], event["partition"]) for events in evidence.history.reads.values() for event in events}
    return max((place for place in read if place[0] not in special), key=lambda place: len(evidence.logs[place].values))


def _of(topics: frozenset[str], evidence: Evidence) -> Place:
    return max(
        (place for place in evidence.logs if place[0] in topics), key=lambda place: len(evidence.logs[place].values)
    )


def _with_log(evidence: Evidence, place: Place, log: FinalLog) -> Evidence:
    return replace(evidence, logs={**evidence.logs, place: log})


def _with_values(evidence: Evidence, place: Place, changes: Mapping[int, str | None]) -> Evidence:
    """The evidence with other values at these offsets of a log; None: no record."""
    log = evidence.logs[place]
    values = {offset: value for offset, value in {**log.values, **changes}.items() if value is not None}
    keys = {offset: key for offset, key in log.keys.items() if offset in values}
    return _with_log(evidence, place, replace(log, values=values, keys=keys))


def _with_history(evidence: Evidence, **changes: Any) -> Evidence:
    return replace(evidence, history=replace(evidence.history, **changes))


def _middle(offsets: list[int]) -> int:
    return offsets[len(offsets) // 2]


def _lose_a_record(evidence: Evidence) -> Evidence:
    place = _plain(evidence)
    return _with_values(evidence, place, {_middle([offset for *_, offset in evidence.history.acked[place]]): None})


def _lose_the_end(evidence: Evidence) -> Evidence:
    place = _plain(evidence)
    return _with_values(evidence, place, {max(evidence.logs[place].values): None})


def _lose_a_last_value(evidence: Evidence) -> Evidence:
    place = _of(evidence.compacted, evidence)
    return _with_values(evidence, place, {max(evidence.logs[place].values): None})


def _committed(evidence: Evidence) -> tuple[Place, int]:
    """A record of a committed transaction: its partition and offset."""
    place = _of(evidence.transactional, evidence)
    history = evidence.history
    numbers = {
        (transaction.producer, number): key
        for key, transaction in history.transactions.items()
        if history.outcomes.get(key) == "committed"
        for number in range(transaction.first, transaction.first + transaction.size)
    }
    return place, _middle([at for at, value in evidence.logs[place].values.items() if number_of(value) in numbers])


def _lose_a_part_of_a_transaction(evidence: Evidence) -> Evidence:
    place, offset = _committed(evidence)
    return _with_values(evidence, place, {offset: None})


def _tear_a_transaction(evidence: Evidence) -> Evidence:
    place, offset = _committed(evidence)
    unknown = _with_outcome(evidence, evidence.logs[place].values[offset], "unknown")
    return _with_values(unknown, place, {offset: None})


def _with_outcome(evidence: Evidence, value: str, outcome: str) -> Evidence:
    """The evidence with another outcome of the transaction of this record."""
    producer, number = number_of(value)
    key = next(
        key
        for key, transaction in evidence.history.transactions.items()
        if transaction.producer == producer and transaction.first <= number < transaction.first + transaction.size
    )
    return _with_history(evidence, outcomes={**evidence.history.outcomes, key: outcome})


def _commit_an_aborted_record(evidence: Evidence) -> Evidence:
    """Let the log forget that a record's transaction was aborted. A producer that was killed may not know the outcome:
    the anomaly has a producer that knows."""
    place = _of(evidence.transactional, evidence)
    log = evidence.logs[place]
    assert log.aborted, "a transaction has been aborted"
    offset = min(log.aborted)
    aborted = _with_outcome(evidence, log.values[offset], "aborted")
    return _with_log(aborted, place, replace(log, aborted=log.aborted - {offset}))


def _abort_a_record_that_was_read(evidence: Evidence) -> Evidence:
    place, offset = _committed(evidence)
    log = evidence.logs[place]
    return _with_log(evidence, place, replace(log, aborted=log.aborted | {offset}))


def _move_a_record(evidence: Evidence) -> Evidence:
    place = _plain(evidence)
    log = evidence.logs[place]
    offset = _middle([offset for *_, offset in evidence.history.acked[place]])
    return _with_values(evidence, place, {offset: None, log.high_watermark: log.values[offset]})


def _duplicate_a_record(evidence: Evidence) -> Evidence:
    place = _plain(evidence)
    log = evidence.logs[place]
    return _with_values(evidence, place, {log.high_watermark: log.values[max(log.values)]})


def _reorder_records(evidence: Evidence) -> Evidence:
    place = _plain(evidence)
    values = evidence.logs[place].values
    by_producer: dict[str, list[int]] = defaultdict(list)
    for offset in sorted(values):
        by_producer[number_of(values[offset])[0]].append(offset)
    first, second = max(by_producer.values(), key=len)[-2:]
    return _with_values(evidence, place, {first: values[second], second: values[first]})


def _invent_a_record(evidence: Evidence) -> Evidence:
    place = _plain(evidence)
    log = evidence.logs[place]
    producer, _ = number_of(log.values[max(log.values)])
    invented = f"{producer}:{evidence.history.sent[producer]}"
    return _with_values(evidence, place, {log.high_watermark: invented})


def _give_a_record_up(evidence: Evidence) -> Evidence:
    failed = {"op": "failed", "producer": next(iter(evidence.history.sent)), "number": 0, "why": "planted"}
    return _with_history(evidence, failed=[failed])


def _lose_a_position(evidence: Evidence) -> Evidence:
    reset = {"op": "reset", "reader": next(iter(evidence.history.reads)), "why": "planted"}
    return _with_history(evidence, resets=[reset])


def _with_polls(
    evidence: Evidence,
    change: Callable[[list[Event]], list[Event]],
    *,
    in_group: bool = False,
    place: Place | None = None,
) -> Evidence:
    """The evidence with other polls of one partition by one reader, which has begun at its start."""
    wanted = place or _plain(evidence)
    polls = {
        reader: [
            event for event in events if event["op"] == "polled" and (event["topic"], event["partition"]) == wanted
        ]
        for reader, events in evidence.history.reads.items()
        if (reader in evidence.groups) is in_group
    }
    reader = max(polls, key=lambda name: len(polls[name]))
    others = [event for event in evidence.history.reads[reader] if event not in polls[reader]]
    reads = {**evidence.history.reads, reader: [*others, *change(polls[reader])]}
    return _with_history(evidence, reads=reads)


def _without_middle(polls: list[Event]) -> list[Event]:
    """The polls without a record in the middle."""
    number = max(range(len(polls)), key=lambda index: len(polls[index]["offsets"]))
    poll = polls[number]
    at = len(poll["offsets"]) // 2
    assert len(poll["offsets"]) > 2, "a poll has some records"
    offsets, values = ([*poll[name][:at], *poll[name][at + 1 :]] for name in ("offsets", "values"))
    return [*polls[:number], {**poll, "offsets": offsets, "values": values}, *polls[number + 1 :]]


def _without_first(polls: list[Event]) -> list[Event]:
    poll = polls[0]
    rest = {**poll, "offsets": poll["offsets"][1:], "values": poll["values"][1:]}
    return [rest, *polls[1:]] if rest["offsets"] else polls[1:]


def _with_other_value(polls: list[Event]) -> list[Event]:
    poll = polls[-1]
    producer, number = number_of(poll["values"][-1])
    return [*polls[:-1], {**poll, "values": [*poll["values"][:-1], f"{producer}:{number + 1}"]}]


def _before_the_commit(polls: list[Event]) -> list[Event]:
    return [{**poll, "at_s": float("-inf")} for poll in polls]


def _begin_a_group_late(evidence: Evidence) -> Evidence:
    """Let the first member get nothing, while the next members go on where it would have stopped."""
    return _with_group(evidence, lambda polls: [])


def _with_group(evidence: Evidence, change: Callable[[list[Event]], list[Event]]) -> Evidence:
    place = _plain(evidence)
    reads = dict(evidence.history.reads)
    for reader in evidence.groups:
        polls = [
            event
            for event in reads[reader]
            if event["op"] == "polled" and (event["topic"], event["partition"]) == place
        ]
        if polls:
            reads[reader] = [*(event for event in reads[reader] if event not in polls), *change(polls)]
    return _with_history(evidence, reads=reads)


def _lose_commits(evidence: Evidence) -> Evidence:
    """Let a member begin again at the start, after everything was read and committed."""
    place = _plain(evidence)
    log = evidence.logs[place]
    topic, partition = place
    reader = next(iter(evidence.groups))
    first = min(log.values)
    here = {"reader": reader, "topic": topic, "partition": partition}
    late: list[Event] = [
        {"op": "committed", "offset": log.high_watermark, "asked_s": 1e12, "at_s": 1e12, **here},
        {"op": "assigned", "offset": None, "at_s": 2e12, **here},
        {"op": "polled", "offsets": [first], "values": [log.values[first]], "at_s": 3e12, **here},
    ]
    reads = {**evidence.history.reads, reader: [*evidence.history.reads[reader], *late]}
    return _with_history(evidence, reads=reads)


def _change_a_replica(evidence: Evidence) -> Evidence:
    place = _plain(evidence)
    node, log = max(evidence.replicas[place].items())
    batches = list(log.batches)
    batches[len(batches) // 2] = batches[len(batches) // 2]._replace(digest=b"planted")
    return _with_replica(evidence, place, node, replace(log, batches=batches))


def _shorten_a_replica(evidence: Evidence) -> Evidence:
    place = _plain(evidence)
    node, log = max(evidence.replicas[place].items())
    return _with_replica(evidence, place, node, replace(log, batches=log.batches[:-1]))


def _change_a_last_value(evidence: Evidence) -> Evidence:
    place = _of(evidence.compacted, evidence)
    node, log = max(evidence.replicas[place].items())
    key, (offset, value) = next(iter(log.last_values.items()))
    return _with_replica(
        evidence, place, node, replace(log, last_values={**log.last_values, key: (offset, f"{value}0")})
    )


def _with_replica(evidence: Evidence, place: Place, node: int, log: Any) -> Evidence:
    return replace(evidence, replicas={**evidence.replicas, place: {**evidence.replicas[place], node: log}})


PLANTS: Final[Mapping[str, tuple[str, Plant]]] = {
    "an acknowledged record is lost": ("lost", _lose_a_record),
    "the last record is lost": ("lost", _lose_the_end),
    "the last value of a key is lost": ("lost", _lose_a_last_value),
    "a record of a committed transaction is lost": ("lost", _lose_a_part_of_a_transaction),
    "a transaction of unknown outcome is torn": ("torn", _tear_a_transaction),
    "an aborted record is visible": ("aborted shown", _commit_an_aborted_record),
    "a reader saw an aborted record": ("aborted shown", _abort_a_record_that_was_read),
    "a record moved": ("moved", _move_a_record),
    "a record is there twice": ("duplicated", _duplicate_a_record),
    "two records changed places": ("reordered", _reorder_records),
    "a record was never sent": ("invented", _invent_a_record),
    "a producer gave up": ("given up", _give_a_record_up),
    "a reader skipped a record": ("skipped", lambda evidence: _with_polls(evidence, _without_middle)),
    "a reader skipped the first record": ("skipped", lambda evidence: _with_polls(evidence, _without_first)),
    "a member of a group skipped a record": (
        "skipped",
        lambda evidence: _with_polls(evidence, _without_middle, in_group=True),
    ),
    "a reader stopped early": ("unseen", lambda evidence: _with_polls(evidence, lambda polls: polls[:-1])),
    "a group saw nothing": ("unseen", _begin_a_group_late),
    "a reader went back": ("went back", lambda evidence: _with_polls(evidence, lambda polls: [*polls, polls[-1]])),
    "a group lost its commits": ("went back", _lose_commits),
    "a reader saw another value": (
        "uncommitted shown",
        lambda evidence: _with_polls(evidence, _with_other_value),
    ),
    "a reader saw a transaction before its end": (
        "uncommitted shown",
        lambda evidence: _with_polls(evidence, _before_the_commit, place=_of(evidence.transactional, evidence)),
    ),
    "a reader lost its position": ("reset", _lose_a_position),
    "the bytes of a replica differ": ("diverged", _change_a_replica),
    "a replica is too short": ("diverged", _shorten_a_replica),
    "the last values of a replica differ": ("diverged", _change_a_last_value),
}
"""For each anomaly the kind that the verdict must name, and the planter."""
