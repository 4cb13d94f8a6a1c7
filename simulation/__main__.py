"""Runs of simulated quorums: `python -m simulation --help`."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from simulation.commits.scope import CommitScope
from simulation.commits.scopes import LONG_SCOPES as LONG_COMMIT_SCOPES
from simulation.commits.scopes import SHORT_SCOPES as SHORT_COMMIT_SCOPES
from simulation.commits.scopes import NamedCommitScope
from simulation.harness.shrink import Attempts, explain
from simulation.harness.small_scope import A, Explored, ScopeBreach, ScopeModel, W, explore
from simulation.harness.sweep import Sweep, SweepFile, sweep_seeds
from simulation.members.scope import MemberScope
from simulation.members.scopes import LONG_SCOPES as LONG_MEMBER_SCOPES
from simulation.members.scopes import SHORT_SCOPES as SHORT_MEMBER_SCOPES
from simulation.members.scopes import NamedMemberScope
from simulation.members.sweep import MemberSweep, run_members_seed
from simulation.mutant_tests import noticed_by, unit_tests_of
from simulation.mutants import Mutant, all_mutants, hunt, store_seed, store_unit_tests
from simulation.quorum.sweep import NodesSweep, run_nodes_seed
from simulation.raft.cluster import RaftCluster
from simulation.raft.plan import RaftPlan
from simulation.raft.scope.scope import QuorumBudget, RaftScope
from simulation.raft.scope.scopes import LONG_SCOPES, LongScope
from simulation.raft.sweep import RaftSweep, quorum_code_version, run_quorum_seed
from simulation.replicas.sweep import ReplicaSweep, run_replicas_seed
from simulation.sessions.scope import SessionScope
from simulation.sessions.scopes import LONG_SCOPES as LONG_SESSION_SCOPES
from simulation.sessions.scopes import SHORT_SCOPES as SHORT_SESSION_SCOPES
from simulation.sessions.scopes import NamedSessionScope
from simulation.sinks.scope import SinkScope
from simulation.sinks.scopes import LONG_SCOPES as LONG_SINK_SCOPES
from simulation.sinks.scopes import SHORT_SCOPES as SHORT_SINK_SCOPES
from simulation.sinks.scopes import NamedBudget
from simulation.transactions.sweep import TransactionSweep, run_transactions_seed, transactions_code_version


class SweptWorld(NamedTuple):
    """A world that is run by many seeds."""

    what: str
    """The description of the world for `--help`."""
    kind: type[Sweep[Any]]
    run: Callable[[int], Sweep[Any]]
    seeds: int
    """The number of seeds without an argument."""
    does_count: bool = False
    """Whether `seeds` is a number of runs that are eventful enough to be counted."""
    code: Callable[[], str] | None = None
    """The version of the code; None if the results are not kept in a file, so that a sweep cannot be interrupted."""


SWEEPS = {
    "seeds": SweptWorld("run a quorum under faults", RaftSweep, run_quorum_seed, 300),
    "soak": SweptWorld(
        "run a quorum until so many seeds count; may be interrupted and goes on",
        RaftSweep,
        run_quorum_seed,
        20_000,
        does_count=True,
        code=quorum_code_version,
    ),
    "nodes": SweptWorld("run whole nodes that keep a cluster's metadata", NodesSweep, run_nodes_seed, 100),
    "replicas": SweptWorld(
        "run brokers that keep copies, until so many seeds count", ReplicaSweep, run_replicas_seed, 100, does_count=True
    ),
    "members": SweptWorld("run a group, its members and its coordinator", MemberSweep, run_members_seed, 300),
    "transactions": SweptWorld(
        "run brokers with transactions until so many seeds count; may be interrupted and goes on",
        TransactionSweep,
        run_transactions_seed,
        100,
        does_count=True,
        code=transactions_code_version,
    ),
}


KINDS = ("quorum", "sessions", "commits", "sinks", "members")
"""The kinds of exhaustive searches."""


def main() -> int:
    """Exit code 1 if a law was broken, or if a mutant lives."""
    parser = argparse.ArgumentParser(prog="python -m simulation")
    commands = parser.add_subparsers(required=True)
    for name, world in SWEEPS.items():
        sweep = commands.add_parser(name, help=world.what)
        sweep.add_argument("--first", type=int, default=0, help="the first seed")
        if world.does_count:
            sweep.add_argument("--counted", "--count", type=int, default=world.seeds, help="go on until so many count")
        else:
            sweep.add_argument("--count", type=int, default=world.seeds)
        sweep.add_argument("--processes", type=int, default=2)
        if world.code is not None:
            sweep.add_argument("--state", type=Path, default=Path(f"build/simulation-{name}.json"))
        sweep.add_argument("--seed", type=int, help="run this one alone, cut down if it fails")
        sweep.set_defaults(run=partial(_run_sweep, world))
    repeat = commands.add_parser("repeat", help="run one seed of a quorum again and tell what happens")
    repeat.add_argument("seed", type=int)
    repeat.set_defaults(run=_repeat)
    mutants = commands.add_parser("mutants", help="look for seeds that kill each mutant, and store them")
    mutants.add_argument("names", nargs="*", help="all of them, if none is named")
    mutants.add_argument("--directory", type=Path, default=Path("tests/simulation/mutants"))
    mutants.add_argument("--first", type=int, default=0)
    mutants.add_argument("--count", type=int, default=200)
    mutants.add_argument("--kills", type=int, default=1, help="go on until so many seeds have killed it")
    mutants.add_argument("--processes", type=int, default=2)
    mutants.add_argument(
        "--unit-tests", action="store_true", help="look instead which unit tests notice each, and store them"
    )
    mutants.set_defaults(run=_hunt)
    scope = commands.add_parser("scope", help="try every order of a few things")
    scope.add_argument("--voters", type=int, default=3)
    scope.add_argument("--instant-disk", action="store_true", help="nothing is ever owed, and a crash loses nothing")
    scope.add_argument("--may-look", action="store_true", help="a node that looks for a leader may ask every other")
    scope.add_argument("--max-states", type=int, default=20_000_000)
    scope.add_argument("--max-seconds", type=float, default=1e9)
    scope.add_argument("--processes", type=int, default=2)
    for name in QuorumBudget._fields:
        scope.add_argument(f"--{name.replace('_', '-')}", type=int, default=0)
    scope.set_defaults(run=_run_scope)
    scopes = commands.add_parser("scopes", help="try every order in all scopes that end; tens of minutes")
    scopes.add_argument("--max-states", type=int, default=20_000_000)
    scopes.add_argument("--processes", type=int, default=2)
    scopes.add_argument("--only", choices=KINDS, help="one kind of them")
    scopes.set_defaults(run=_run_scopes)
    options = parser.parse_args()
    return int(options.run(options))


def _run_sweep(world: SweptWorld, options: argparse.Namespace) -> int:
    if options.seed is not None:
        found = world.run(options.seed)
        _say(found.failures[0] if found.failures else f"seed {options.seed}: no law is broken")
        return len(found.failures)
    store = None if world.code is None else SweepFile(options.state, f"{world.code()} from {options.first}")
    if store is not None:
        _say(f"seeds from {options.first}, code {store.code}")
    total = sweep_seeds(
        world.kind,
        world.run,
        first=options.first,
        seeds=None if world.does_count else options.count,
        counted=options.counted if world.does_count else None,
        processes=options.processes,
        store=store,
        on_progress=_progress,
    )
    _say(total.summary())
    missed = total.missed if total.counted >= 300 else []  # a few seeds need not reach everything
    return 1 if total.failures or missed else 0


def _repeat(options: argparse.Namespace) -> int:
    seed = options.seed
    plan = RaftPlan.of(seed)
    _say(str(plan))
    attempts = Attempts(RaftCluster, seed)
    failure = attempts.failure(plan)
    if failure is not None:
        _say(explain(attempts, failure))
        return 1
    cluster = RaftCluster(seed, plan)
    cluster.run()
    for line in cluster.world.notes:
        _say(line)
    _say(cluster.describe())
    return 0


def _progress(total: Sweep[Any]) -> None:
    if total.seeds % 100 == 0:
        failed = f", {len(total.failures)} FAILED" if total.failures else ""
        _say(f"{total.seeds} seeds, {total.counted} count{failed}; {total.per_minute:.0f} per minute")


def _hunt(options: argparse.Namespace) -> int:
    mutants = [mutant for mutant in all_mutants(options.directory) if not options.names or mutant.name in options.names]
    if options.unit_tests:
        return _try_unit_tests(options.directory, mutants)
    known = {mutant.name: mutant for mutant in mutants}
    look = partial(hunt, seeds=range(options.first, options.first + options.count), kills=options.kills)
    alive = []
    with get_context("spawn").Pool(options.processes) as pool:
        for found in pool.imap_unordered(look, mutants):
            if found.seed is None:
                alive.append(found.name)
                _say(f"{found.name} LIVES after {found.seeds} seeds: {found.broken}")
            else:
                store_seed(options.directory, found.name, found.seed)
                _say(f"{found.name}: seed {found.seed}, {known[found.name].law} ({found.seeds} tried: {found.broken})")
    _say(f"{len(mutants)} mutants, {len(alive)} live: {', '.join(sorted(alive)) or 'none'}")
    return 1 if alive else 0


def _try_unit_tests(directory: Path, mutants: Sequence[Mutant]) -> int:
    quiet = 0
    for mutant in mutants:
        found = noticed_by(directory / f"{mutant.name}.toml", unit_tests_of(mutant))
        store_unit_tests(directory, mutant.name, found)
        quiet += not found
        _say(f"{mutant.name}: unit tests {'pass' if not found else 'notice: ' + ', '.join(found)}")
    _say(f"{len(mutants)} mutants, {quiet} that unit tests pass")
    return 0


def _run_scope(options: argparse.Namespace) -> int:
    budget = QuorumBudget(*(getattr(options, name) for name in QuorumBudget._fields))
    scope = LongScope(budget, options.instant_disk, options.may_look)
    found = _search(scope, options.voters, options.max_states, options.max_seconds, options.processes)
    return 1 if found is None else 0


def _run_scopes(options: argparse.Namespace) -> int:
    """Search the scopes that must end, one scope after the other."""
    began = time.monotonic()
    searches: list[Callable[[], Explored | None]] = []
    if options.only in (None, "sessions"):
        searches += [
            partial(_search_sessions, named, options.max_states, options.processes)
            for named in (*SHORT_SESSION_SCOPES, *LONG_SESSION_SCOPES)
        ]
    if options.only in (None, "commits"):
        searches += [
            partial(_search_commits, named, options.max_states, options.processes)
            for named in (*SHORT_COMMIT_SCOPES, *LONG_COMMIT_SCOPES)
        ]
    if options.only in (None, "sinks"):
        searches += [
            partial(_search_sinks, named, options.max_states, options.processes)
            for named in (*SHORT_SINK_SCOPES, *LONG_SINK_SCOPES)
        ]
    if options.only in (None, "members"):
        searches += [
            partial(_search_members, named, options.max_states, options.processes)
            for named in (*SHORT_MEMBER_SCOPES, *LONG_MEMBER_SCOPES)
        ]
    if options.only in (None, "quorum"):
        searches += [partial(_search, named, 3, options.max_states, 1e9, options.processes) for named in LONG_SCOPES]
    states = open_ends = 0
    for search in searches:
        found = search()
        if found is None:
            return 1
        states += found.states
        open_ends += not found.is_complete
    seconds = time.monotonic() - began
    _say(f"{len(searches)} scopes, {open_ends} cut off, {states} states, no law broken; {seconds:.0f} s")
    return 1 if open_ends else 0


def _search_sessions(named: NamedSessionScope, max_states: int, processes: int) -> Explored | None:
    """None if a law was broken."""
    scope = SessionScope(named.kind)
    _say(f"{named.name}: {named.kind}, {named.budget}")
    return _explored(scope, scope.start(named.budget), max_states, 1e9, processes)


def _search_commits(named: NamedCommitScope, max_states: int, processes: int) -> Explored | None:
    """None if a law was broken."""
    scope = CommitScope(named.kind)
    _say(f"{named.name}: {named.kind}, {named.budget}")
    return _explored(scope, scope.start(named.budget), max_states, 1e9, processes)


def _search_sinks(named: NamedBudget, max_states: int, processes: int) -> Explored | None:
    """None if a law was broken."""
    scope = SinkScope()
    _say(f"{named.name}: {named.budget}")
    return _explored(scope, scope.start(named.budget), max_states, 1e9, processes)


def _search_members(named: NamedMemberScope, max_states: int, processes: int) -> Explored | None:
    """None if a law was broken."""
    scope = MemberScope(named.size)
    _say(f"{named.name}: {named.size}, {named.budget}")
    return _explored(scope, scope.start(named.budget), max_states, 1e9, processes)


def _search(long: LongScope, voters: int, max_states: int, max_seconds: float, processes: int) -> Explored | None:
    """None if a law was broken."""
    scope = RaftScope(voters, instant_disk=long.instant_disk, may_look=long.may_look)
    looks = ", every node asks every other" if long.may_look else ""
    _say(f"{voters} voters, {long.budget}, disks {'instant' if long.instant_disk else 'apart'}{looks}")
    return _explored(scope, scope.start(long.budget), max_states, max_seconds, processes)


def _explored(
    model: ScopeModel[W, A], start: W, max_states: int, max_seconds: float, processes: int
) -> Explored | None:
    try:
        found = explore(
            model,
            start,
            max_states=max_states,
            processes=processes,
            max_seconds=max_seconds,
            tell=_every(30, lambda states: _say(f"{states} states so far")),
        )
    except ScopeBreach as breach:
        _say(str(breach))
        return None
    _say(found.summary())
    return found


def _every(seconds: float, tell: Callable[[int], None]) -> Callable[[int], None]:
    """Prints the progress only now and then."""
    last = time.monotonic()

    def told(number: int) -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            tell(number)

    return told


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
