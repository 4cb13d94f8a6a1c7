"""The scopes of a quorum whose exhaustive search ends, all together within the hour."""

from typing import NamedTuple

from simulation.raft.scope.scope import QuorumBudget


class LongScope(NamedTuple):
    """A search that takes minutes."""

    budget: QuorumBudget
    instant_disk: bool = False
    may_look: bool = False


LONG_SCOPES = (
    LongScope(QuorumBudget(writes=2, snapshots=1, duplicates=1)),
    LongScope(QuorumBudget(writes=2, voter_changes=1)),
    LongScope(QuorumBudget(timeouts=1, voter_changes=1)),
    LongScope(QuorumBudget(timeouts=1, snapshots=1)),
    LongScope(QuorumBudget(timeouts=2)),
    LongScope(QuorumBudget(timeouts=1, crashes=1), instant_disk=True, may_look=True),
    LongScope(QuorumBudget(writes=2, crashes=2, snapshots=1)),
    LongScope(QuorumBudget(writes=1, crashes=1, snapshots=1, voter_changes=1)),
    LongScope(QuorumBudget(writes=1, crashes=1, timeouts=1)),
    LongScope(QuorumBudget(writes=2, crashes=1, timeouts=1), instant_disk=True),
    LongScope(QuorumBudget(writes=2, crashes=2, voter_changes=1), instant_disk=True),
    LongScope(QuorumBudget(writes=2, crashes=2, snapshots=1, voter_changes=1), instant_disk=True),
)
"""Scopes whose search ends. The last scope has all kinds of events together, on instant disks; each other scope has
some kinds, with more events of each kind."""
