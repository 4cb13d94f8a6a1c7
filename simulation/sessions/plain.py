"""A world of fetch sessions as a text that is the same for worlds that nothing can tell apart.

Ids of sessions, their epochs and times have no meaning of their own: an id is replaced by its place in the order in
which ids occur, an epoch by its distance from the epoch that the broker expects, a time by its rank among all times.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final

from simulation.sessions.parts import Parts
from tailrace.fetch_session.requester import FetchSessionRequester
from tailrace.fetch_session.session import STATED_FIELDS, FetchSession
from tailrace.protocol.messages.fetch import FetchRequest, FetchResponse
from tailrace.replication.replica_progress import ReplicaProgress

_FAR: Final = 3
"""The distance from the expected epoch from which on all epochs are equally wrong."""

stated: Final = attrgetter(*STATED_FIELDS)
"""Returns the fields of a partition that its reader has stated."""
SESSION_PARTS: Final = frozenset(
    (
        "_last_rank",
        "_most_due",
        "_named_in_order",
        "_topics",
        "client",
        "client_host",
        "client_id",
        "conditions",
        "counted",
        "created_ms",
        "due",
        "epoch",
        "has_long_names",
        "idle_answer_ms",
        "incremental_fetches",
        "is_busy",
        "is_open",
        "is_privileged",
        "key_range_count",
        "last_used_ms",
        "listener",
        "may_redirect",
        "missing",
        "missing_told_ms",
        "owner",
        "partition_count",
        "saved_bytes",
        "session_id",
        "unacknowledged",
        "uses_topic_ids",
        "visits",
        "waiting",
    )
)
REQUESTER_PARTS: Final = frozenset(
    (
        "session_id",
        "epoch",
        "_max_partitions",
        "_is_refused",
        "_is_under_way",
        "_is_abandoned",
        "_wanted",
        "_held",
        "_unsent",
        "_leaving",
    )
)


class _Names:
    """The ids and times of one world, and their names."""

    def __init__(self, parts: Parts) -> None:
        self._ids: dict[int, int] = {0: 0}
        self._expected = {kept.session_id: kept.epoch for kept in parts.broker.sessions.cache.sessions()}
        times = sorted(set(_times(parts)))
        self.ranks = {time: rank for rank, time in enumerate(times)}

    def epoch(self, session_id: int, epoch: int) -> str:
        number = self._ids.setdefault(session_id, len(self._ids))
        if epoch <= 0:
            return f"{number}:{epoch}"
        expected = self._expected.get(session_id)
        away = "gone" if expected is None else max(-_FAR, min(_FAR, epoch - expected))
        return f"{number}+{away}"


def _progresses(parts: Parts) -> Iterable[ReplicaProgress]:
    for partition in parts.broker.partitions:
        if partition.in_sync.leadership is not None:
            yield from partition.in_sync.leadership.replicas.values()


def _times(parts: Parts) -> Iterable[int]:
    for progress in _progresses(parts):
        yield progress._caught_up_ms
        yield progress._fetched_ms
        if progress._visits is not None:
            yield progress._visits.fetched_ms
    for session in parts.broker.sessions.cache.sessions():
        if session.visits is not None:
            yield session.visits.fetched_ms
    for partition in parts.broker.partitions:
        yield from partition.appended_ms


def plain(parts: Parts) -> str:
    """The text, without the budget."""
    names = _Names(parts)
    broker = parts.broker
    readers = [
        (
            _requester(reader.requester, names),
            sorted(reader.offsets.items()),
            sorted(reader.known.items()),
            sorted(reader.marks.items()) if reader.is_follower else (),
            sorted(reader.wanted),
            sorted(reader.changed),
            sorted(reader.forgotten),
            reader.is_asking,
            reader.broker_epoch,
            _is_learned_late(parts, reader),
        )
        for reader in parts.readers
    ]
    awaited = {(reader.index, reader.awaited) for reader in parts.readers if reader.is_asking}
    partitions = [
        (partition.truth, [names.ranks[time] for time in partition.appended_ms], len(partition.watchers._kinds))
        for partition in broker.partitions
    ]
    sessions = [_session(session, names) for session in broker.sessions.cache.sessions()]
    waiting = [
        (fetch.sender in awaited, fetch.sender.reader, _request(fetch.request, names), fetch.session.is_open)
        for fetch in broker.waiting
    ]
    requests = sorted(
        (request.sender in awaited, request.sender.reader, _request(request.request, names))
        for request in parts.requests
    )
    answers = sorted(
        (answer.sender in awaited, answer.sender.reader, _response(answer.response, names), answer.truths)
        if answer.sender in awaited
        else (False, 0, "", ())  # nothing hears it
        for answer in broker.answers
    )
    followers = [_progress(progress, names) for progress in _progresses(parts)]
    return repr((readers, partitions, sessions, waiting, requests, answers, followers))


def _is_learned_late(parts: Parts, reader: Any) -> bool:
    """Whether the follower has caught up since the leader learned its registration."""
    times = [progress.caught_up_ms for progress in _progresses(parts)] if reader.is_follower else []
    return any(time > parts.broker.learned_ms for time in times)


def _requester(requester: FetchSessionRequester[int, int], names: _Names) -> object:
    state = requester.__dict__
    assert state.keys() == REQUESTER_PARTS, f"a requester has other parts: {sorted(state)}"
    return (
        names.epoch(requester.session_id, requester.epoch),
        state["_is_refused"],
        state["_is_under_way"],
        state["_is_abandoned"],
        list(state["_wanted"].items()),
        sorted(state["_held"].items()),
        sorted(state["_unsent"]),
        sorted(state["_leaving"]),
    )


def _session(session: FetchSession, names: _Names) -> object:
    assert session.__dict__.keys() == SESSION_PARTS, "a session has other parts"
    assert session._named_in_order is None, "no longer than a fetch is taken"
    in_order = sorted(session, key=lambda entry: entry.rank)
    unacknowledged = set(session.unacknowledged)
    visits: Any = session.visits
    return (
        names.epoch(session.session_id, session.epoch),
        session.owner,
        session.is_privileged,
        session.conditions,
        session.last_used_ms == 0,
        None if visits is None else (names.ranks[visits.fetched_ms], visits._broker_epoch, visits._may_join),
        [
            (
                stated(entry),
                entry.known_high_watermark,
                entry.known_log_start_offset,
                entry.subject is not None,
                entry in session.due,
                entry in session.waiting,
                entry in unacknowledged,
            )
            for entry in in_order
        ],
    )


def _request(request: FetchRequest, names: _Names) -> str:
    return repr(
        (
            names.epoch(request.session_id, request.session_epoch),
            request.replica_state,
            request.topics,
            request.forgotten_topics_data,
        )
    )


def _response(response: FetchResponse, names: _Names) -> str:
    return repr((names.epoch(response.session_id, 0), response.error_code, response.responses))


def _progress(progress: ReplicaProgress, names: _Names) -> object:
    return (
        progress.end_offset,
        progress.broker_epoch,
        progress.may_join,
        names.ranks[progress._caught_up_ms],
        names.ranks[progress._fetched_ms],
        progress._has_asked,
        progress._leader_end_offset,
        progress.sent_high_watermark,
        progress.known_high_watermark,
        None if progress._visits is None else names.ranks[progress._visits.fetched_ms],
    )
