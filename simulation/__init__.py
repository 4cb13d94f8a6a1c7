"""Simulated worlds: one queue of events, time that jumps, chance from a seed, a network and disks with faults.

`harness` has the world, network, disks, turns of a nemesis, sweeps over seeds, and the search through every order.
Each other folder is a world: `raft` (the machine alone), `quorum` (nodes with hosts and disks), `replicas` (copies of
partitions), `transactions`, `sessions`, `commits`, `sinks`, `logs` (one log on one disk),
`loads` (a node under mixed load, with power cuts).
"""
