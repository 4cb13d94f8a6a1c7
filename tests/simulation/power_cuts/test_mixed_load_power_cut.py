"""Power cuts at random operations under mixed load: what was acknowledged is there, once, in order.

The product's handlers, hosts, coordinators, partitions and logs run on the simulated disk, and one seed decides
everything: the requests and their times, the delays of flushes, power cuts, kills of the process, and the losses of the
disk. Producers with and without numbers, a compacted topic, a group's commits, an administrator and deleted records,
all at once; after each cut the next node opens what is left, and clients without an answer try again. At the end
`testkit.verdicts.node_verdict` judges.

The same with a disk whose syncs do nothing, and with a node that answers before the sync, MUST be found out.

POWER_CUTS in the environment is the number of cuts, SEED the first seed; `make soak` makes more cuts.
"""

import itertools
import os
from collections import Counter

import pytest

from simulation.loads.loaded_node import LoadedNode
from tailrace.model.errors import KafkaError

CUTS = int(os.environ.get("POWER_CUTS", "200"))
FIRST_SEED = int(os.environ.get("SEED", "1"))
LIVES = 5
"""The number of deaths of the node of one seed."""


def counts_and_faults(seed: int, **mutation: bool) -> tuple[Counter[str], list[str]]:
    """The history of a node that died a few times, and every promise that this node broke."""
    loaded = LoadedNode(seed, **mutation)
    for _ in range(LIVES):
        loaded.live_and_die()
    return loaded.counts, loaded.judge()


@pytest.mark.timeout(3600)
def test_a_node_under_mixed_load_loses_doubles_and_reorders_no_acknowledged_write_in_power_cuts() -> None:
    counts: Counter[str] = Counter()
    for seed in itertools.count(FIRST_SEED):
        of_seed, faults = counts_and_faults(seed)
        assert not faults, f"SEED={seed}: {len(faults)} promises broken\n" + "\n".join(faults[:20])
        counts += of_seed
        if counts["power cuts"] >= CUTS:
            break
    print(dict(counts))  # noqa: T201
    states = {"power cuts", "kills", "clean stops", "acked", "unknown", "repeated", "committed", "trimmed"}
    states |= {f"{change}{how}" for change in ("create", "enlarge", "delete", "set") for how in ("", "-unknown")}
    assert states <= set(counts), f"never happened, so the test proves too little: {states - set(counts)}"


@pytest.mark.parametrize("mutation", ["lying_sync", "hasty"])
def test_the_mixed_load_finds_a_disk_that_does_not_sync_and_a_node_that_does_not_wait_for_it(mutation: str) -> None:
    """Most of these nodes notice themselves that flushed records are gone, and refuse to serve them or to start.

    A client notices in one of fifty or so: the seeds are some in which that happens.
    """
    seeds, refused, broken = range(200, 260), 0, 0
    for seed in seeds:
        try:
            broken += bool(counts_and_faults(seed, **{mutation: True})[1])
        except (KafkaError, AssertionError):
            refused += 1
    assert broken > 0, "no loss has been noticed by the clients"
    assert broken + refused > len(seeds) / 2
