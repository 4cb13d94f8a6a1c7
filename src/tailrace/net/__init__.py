"""Sockets: what listens and what connects. Knows frames and connections, nothing about topics."""
