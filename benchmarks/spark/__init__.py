"""Spark sessions that read and write topics, each in a process of its own."""
