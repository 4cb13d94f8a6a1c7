"""Raft machines on simulated logs, with a network and clients."""
