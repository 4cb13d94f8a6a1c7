"""Servers and programs that are compared, each a process of its own on 127.0.0.1."""
