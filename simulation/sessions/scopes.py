"""The scopes of fetch sessions whose exhaustive search ends: small scopes in seconds, the long scopes in minutes."""

from typing import Final, NamedTuple

from simulation.harness.small_scope import ScopeBreach, explore
from simulation.sessions.parts import Budget, Kind
from simulation.sessions.scope import SessionScope


class NamedScope(NamedTuple):
    """A search, and its name."""

    name: str
    kind: Kind
    budget: Budget


SHORT_SCOPES: Final = (
    NamedScope("a loss", Kind(), Budget(appends=1, losses=1)),
    NamedScope("a request comes late", Kind(partitions=1), Budget(appends=1, delays=1)),
    NamedScope("a request comes twice", Kind(partitions=1), Budget(appends=1, duplicates=1)),
    NamedScope("the broker restarts", Kind(), Budget(appends=1, broker_restarts=1)),
    NamedScope("a log is offline", Kind(partitions=1), Budget(appends=1, errors=1)),
    NamedScope("a log start rises", Kind(), Budget(appends=1, log_starts=1)),
    NamedScope("a partition is forgotten", Kind(), Budget(forgets=1)),
    NamedScope("a session is closed", Kind(), Budget(appends=1, closes=1)),
    NamedScope("a thief", Kind(readers=2, partitions=1), Budget(thefts=1)),
    NamedScope("one slot for two", Kind(readers=2, partitions=1, slots=1), Budget(evictions=1)),
    NamedScope("a follower evicts", Kind(readers=2, partitions=1, slots=1, is_follower=True), Budget()),
    NamedScope("small answers", Kind(max_bytes=10), Budget(appends=2)),
    NamedScope("small requests", Kind(max_partitions=1), Budget(appends=1)),
    NamedScope("a follower, a loss", Kind(is_follower=True), Budget(appends=1, losses=1)),
    NamedScope("a follower, two records", Kind(is_follower=True), Budget(appends=2)),
    NamedScope("an old follower, a loss", Kind(is_follower=True, version=17), Budget(appends=1, losses=1)),
)
"""Scopes of a few hundred worlds."""

LONG_SCOPES: Final = (
    NamedScope("an old registration", Kind(partitions=1, is_follower=True), Budget(delays=1, reader_restarts=1)),
    NamedScope("a follower restarts", Kind(partitions=1, is_follower=True), Budget(appends=1, reader_restarts=1)),
    NamedScope("requests late and lost", Kind(), Budget(appends=1, losses=1, delays=1)),
    NamedScope("requests late and twice", Kind(), Budget(appends=1, delays=1, duplicates=1)),
    NamedScope("both ends restart", Kind(), Budget(appends=1, broker_restarts=1, reader_restarts=1)),
    NamedScope("forgotten and late", Kind(), Budget(appends=1, forgets=1, delays=1)),
    NamedScope("an error and a loss", Kind(), Budget(appends=1, errors=1, losses=1)),
    NamedScope("two readers, one slot", Kind(readers=2, partitions=1, slots=1), Budget(appends=1, evictions=2)),
    NamedScope("two readers, a thief", Kind(readers=2), Budget(appends=1, thefts=1)),
    NamedScope("a follower, two records, a loss", Kind(is_follower=True), Budget(appends=2, losses=1, delays=1)),
    NamedScope("an old follower, two records", Kind(is_follower=True, version=17), Budget(appends=2, losses=1)),
    NamedScope(
        "a follower restarts late",
        Kind(partitions=1, is_follower=True),
        Budget(appends=1, reader_restarts=1, delays=1),
    ),
    NamedScope("a throttled follower", Kind(is_follower=True), Budget(appends=2, throttles=1)),
    NamedScope(
        "a follower and a consumer, one slot",
        Kind(readers=2, partitions=1, slots=1, is_follower=True),
        Budget(appends=1, losses=1),
    ),
    NamedScope(
        "a client imitates a follower",
        Kind(readers=2, partitions=1, is_follower=True),
        Budget(appends=1, thefts=1),
    ),
)
"""With the short ones a quarter of an hour."""


def run_scope(number: int) -> None:
    """Search the scope of this number, the short ones first. Raises Breach."""
    scope = (*SHORT_SCOPES, *LONG_SCOPES)[number]
    model = SessionScope(scope.kind)
    try:
        explore(model, model.start(scope.budget), max_states=20_000)
    except ScopeBreach as breach:
        assert breach.__cause__ is not None
        raise breach.__cause__ from None
