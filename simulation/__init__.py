"""A simulated world: one queue of events, time that jumps, chance from a seed, a network and disks with faults.

Nothing here knows what a host is, besides the modules named after one (`raft_*`).
"""
