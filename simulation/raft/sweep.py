"""Many seeds on several processes, what they reached, and a file from which to go on."""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Self

import tailrace.raft
from simulation.harness.shrink import attempt, explain
from simulation.harness.sweep import Sweep, code_version, load_sweep, save_sweep
from simulation.raft.cluster import RaftCluster
from simulation.raft.plan import Plan
from simulation.raft.shrink import RaftAttempts

BLOCK = 20
"""Seeds that a process runs before it tells how it went."""
STATES = (
    "a log was cut",
    "a write was torn",
    "change of voters: NONE",
    "clock jump",
    "crash",
    "crash between two effects",
    "crash lost unflushed operations",
    "damaged snapshot refused",
    "disk lost",
    "download of a snapshot given up",
    "leader crashed",
    "leader removes itself",
    "log start raised",
    "lost replica removed",
    "partition: isolate leader",
    "partition: one way",
    "partition: split",
    "snapshot installed",
    "snapshot refused: not committed",
    "snapshot written",
    "the disk of a follower fails every write",
    "the disk of a follower is full",
    "the disk of a leader fails every write",
    "the disk of a leader is full",
)
"""The states that a few hundred seeds must reach."""


@dataclass
class RaftSweep(Sweep):
    """Seeds of quorums."""

    states = STATES

    acked: int = 0
    """Acknowledged writes."""

    def add(self, other: Self) -> None:
        super().add(other)
        self.acked += other.acked

    @property
    def work(self) -> str:
        return f"{super().work}, {self.acked} acknowledged writes"


def run_block(seeds: range) -> RaftSweep:
    """Run these seeds here."""
    sweep = RaftSweep()
    for seed in seeds:
        gc.collect()
        gc.disable()  # a run makes little garbage in cycles, and looking for it takes a tenth of the time
        try:
            _run(seed, sweep)
        finally:
            gc.enable()
    return sweep


def _run(seed: int, sweep: RaftSweep) -> None:
    cluster = RaftCluster(seed, Plan.of(seed))
    try:
        cluster.run()
    except AssertionError as error:
        attempts = RaftAttempts(seed)
        failure = attempt(attempts, cluster.plan)
        broken = f"seed {seed}: {error!r}; {cluster.describe()}"
        sweep.failures.append(broken if failure is None else explain(attempts, failure))
    sweep.seeds += 1
    sweep.counted += cluster.counts
    sweep.events += cluster.world.events
    sweep.acked += cluster.acked
    sweep.sometimes.update(cluster.world.sometimes)
    sweep.faults.update(cluster.faults)


def sweep_blocks(first: int, count: int, processes: int) -> Iterator[RaftSweep]:
    """Run these seeds and give each block as it is done, in order."""
    blocks = [range(start, min(start + BLOCK, first + count)) for start in range(first, first + count, BLOCK)]
    if processes <= 1:
        yield from map(run_block, blocks)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(run_block, blocks)


def sweep_seeds(first: int, count: int, processes: int, tell: Callable[[RaftSweep], None]) -> RaftSweep:
    """Run these seeds; `tell` hears how far it is."""
    total, began = RaftSweep(), time.perf_counter()
    for block in sweep_blocks(first, count, processes):
        total.add(block)
        total.seconds = time.perf_counter() - began
        tell(total)
    return total


# A soak, which may be interrupted


def soak(path: Path, counted: int, processes: int, tell: Callable[[RaftSweep], None]) -> RaftSweep:
    """Run seeds from 0 on until so many count. Results are kept in the file, as long as the code is the same."""
    code = quorum_code_version()  # of what runs here, whatever becomes of the files meanwhile
    total = load_sweep(RaftSweep, path, code)
    while total.counted < counted and not total.failures:
        before, began = total.seconds, time.perf_counter()
        wanted = max(counted - total.counted, BLOCK * processes) * 3 // 2
        for block in sweep_blocks(total.seeds, wanted, processes):
            total.add(block)
            total.seconds = before + time.perf_counter() - began
            save_sweep(path, total, code)
            tell(total)
            if total.counted >= counted:
                break
    return total


def quorum_code_version() -> str:
    """Of the machine and of its simulation."""
    folders = (Path(tailrace.raft.__file__).parent, Path(__file__).parents[1] / "harness", Path(__file__).parent)
    return code_version([source for folder in folders for source in folder.glob("*.py")])
