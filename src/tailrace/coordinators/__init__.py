"""Replicated machines that coordinate clients: consumer groups, and later transactions and shared partitions.

They use no disk, socket or clock: their host is `server.coordination.host`.
"""
