"""Servers, clients and data for our own tests, without sockets. In no wheel: users have `tailrace.testing`."""
