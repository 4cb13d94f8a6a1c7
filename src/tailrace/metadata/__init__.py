"""The cluster's metadata: brokers, topics, partitions, settings. A replicated machine, pure: no IO, no clock.

The state is a `ClusterImage`. `ControllerMachine.decide` turns a command into records, and only records change an
image, so a restart is a replay of the metadata log.
"""
