"""Tailrace: a Kafka-compatible replicated log in Python, with a Spark source and sink that need no jar."""

__version__ = "0.1.0"
