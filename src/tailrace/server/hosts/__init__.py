"""Hosts: each runs one machine, feeds it events and time, and carries out what it asks for."""
