"""Sockets: the listening and the connecting side. Frames and connections only, nothing about topics."""
