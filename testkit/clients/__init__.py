"""Scripted nodes and answers, for clients without a socket."""
