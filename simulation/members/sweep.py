"""Many seeds of groups, in several processes: `python -m simulation members --help`."""

from functools import partial
from typing import Final

from simulation.harness.sweep import Sweep, run_seed
from simulation.members.cluster import MemberCluster
from simulation.members.plan import MemberPlan

STATES = (
    "a commit is refused: STALE_MEMBER_EPOCH",
    "a commit is refused: UNKNOWN_MEMBER_ID",
    "a heartbeat comes late",
    "a heartbeat is refused: FENCED_MEMBER_EPOCH",
    "a heartbeat is refused: UNKNOWN_MEMBER_ID",
    "a heartbeat is refused: UNRELEASED_INSTANCE_ID",
    "a member reads and does not know that it is fenced",
    "a release ends without its commit",
    "a release outlasts its time",
    "a session ends",
    "a static member comes back",
    "a topic grows",
    "an answer is lost",
    "another coordinator",
    "broker crashed",
    "out of the group: OLD_GENERATION",
    "out of the group: POLL_OVERDUE",
    "out of the group: SILENCE",
    "out of the group: UNKNOWN_MEMBER",
    "process closed",
    "process isolated",
    "process killed",
    "process paused",
    "records are lost with their coordinator",
    "records come again",
    "records survive their coordinator",
)
"""The states that a few hundred seeds must reach."""


class MemberSweep(Sweep[MemberCluster]):
    """Seeds of groups."""

    states = STATES


run_members_seed: Final = partial(run_seed, MemberSweep, MemberCluster, MemberPlan.of)
