"""Replicated machines that coordinate clients: groups and transactions.

They use no disk, socket or clock: their host is `server.coordination.host`.
"""
