"""The scopes of fetch sessions whose exhaustive search ends: small scopes in seconds, the long scopes in minutes."""

from typing import Final, NamedTuple

from simulation.harness.small_scope import look_around
from simulation.sessions.parts import SessionBudget, SessionKind
from simulation.sessions.scope import SessionScope


class NamedSessionScope(NamedTuple):
    """A search, and its name."""

    name: str
    kind: SessionKind
    budget: SessionBudget


SHORT_SCOPES: Final = (
    NamedSessionScope("a loss", SessionKind(), SessionBudget(appends=1, losses=1)),
    NamedSessionScope("a request comes late", SessionKind(partitions=1), SessionBudget(appends=1, delays=1)),
    NamedSessionScope("a request comes twice", SessionKind(partitions=1), SessionBudget(appends=1, duplicates=1)),
    NamedSessionScope("the broker restarts", SessionKind(), SessionBudget(appends=1, broker_restarts=1)),
    NamedSessionScope("a log is offline", SessionKind(partitions=1), SessionBudget(appends=1, errors=1)),
    NamedSessionScope("a log start rises", SessionKind(), SessionBudget(appends=1, log_starts=1)),
    NamedSessionScope("a partition is forgotten", SessionKind(), SessionBudget(forgets=1)),
    NamedSessionScope("a session is closed", SessionKind(), SessionBudget(appends=1, closes=1)),
    NamedSessionScope("a thief", SessionKind(readers=2, partitions=1), SessionBudget(thefts=1)),
    NamedSessionScope("one slot for two", SessionKind(readers=2, partitions=1, slots=1), SessionBudget(evictions=1)),
    NamedSessionScope(
        "a follower evicts", SessionKind(readers=2, partitions=1, slots=1, is_follower=True), SessionBudget()
    ),
    NamedSessionScope("small answers", SessionKind(max_bytes=10), SessionBudget(appends=2)),
    NamedSessionScope("small requests", SessionKind(max_partitions=1), SessionBudget(appends=1)),
    NamedSessionScope("a follower, a loss", SessionKind(is_follower=True), SessionBudget(appends=1, losses=1)),
    NamedSessionScope("a follower, two records", SessionKind(is_follower=True), SessionBudget(appends=2)),
    NamedSessionScope(
        "an old follower, a loss", SessionKind(is_follower=True, version=17), SessionBudget(appends=1, losses=1)
    ),
)
"""Scopes of a few hundred worlds."""

LONG_SCOPES: Final = (
    NamedSessionScope(
        "an old registration", SessionKind(partitions=1, is_follower=True), SessionBudget(delays=1, reader_restarts=1)
    ),
    NamedSessionScope(
        "a follower restarts", SessionKind(partitions=1, is_follower=True), SessionBudget(appends=1, reader_restarts=1)
    ),
    NamedSessionScope("requests late and lost", SessionKind(), SessionBudget(appends=1, losses=1, delays=1)),
    NamedSessionScope("requests late and twice", SessionKind(), SessionBudget(appends=1, delays=1, duplicates=1)),
    NamedSessionScope(
        "both ends restart", SessionKind(), SessionBudget(appends=1, broker_restarts=1, reader_restarts=1)
    ),
    NamedSessionScope("forgotten and late", SessionKind(), SessionBudget(appends=1, forgets=1, delays=1)),
    NamedSessionScope("an error and a loss", SessionKind(), SessionBudget(appends=1, errors=1, losses=1)),
    NamedSessionScope(
        "two readers, one slot", SessionKind(readers=2, partitions=1, slots=1), SessionBudget(appends=1, evictions=2)
    ),
    NamedSessionScope("two readers, a thief", SessionKind(readers=2), SessionBudget(appends=1, thefts=1)),
    NamedSessionScope(
        "a follower, two records, a loss", SessionKind(is_follower=True), SessionBudget(appends=2, losses=1, delays=1)
    ),
    NamedSessionScope(
        "an old follower, two records", SessionKind(is_follower=True, version=17), SessionBudget(appends=2, losses=1)
    ),
    NamedSessionScope(
        "a follower restarts late",
        SessionKind(partitions=1, is_follower=True),
        SessionBudget(appends=1, reader_restarts=1, delays=1),
    ),
    NamedSessionScope("a throttled follower", SessionKind(is_follower=True), SessionBudget(appends=2, throttles=1)),
    NamedSessionScope(
        "a follower and a consumer, one slot",
        SessionKind(readers=2, partitions=1, slots=1, is_follower=True),
        SessionBudget(appends=1, losses=1),
    ),
    NamedSessionScope(
        "a client imitates a follower",
        SessionKind(readers=2, partitions=1, is_follower=True),
        SessionBudget(appends=1, thefts=1),
    ),
)
"""Together with the short scopes they take a quarter of an hour."""


def run_scope(number: int) -> None:
    """Search the scope with this number; the numbers of short scopes come first. Raises Breach."""
    scope = (*SHORT_SCOPES, *LONG_SCOPES)[number]
    model = SessionScope(scope.kind)
    look_around(model, model.start(scope.budget), max_states=20_000)
