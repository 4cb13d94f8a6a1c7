"""Replicated machines that coordinate clients: consumer groups, and later transactions and shared partitions.

They see no disk, no socket and no clock: a host in `server.hosts` feeds them.
"""
