"""`tailrace topics`: topics, their settings, their leaders and their replicas."""

from tailrace.cli.topics.commands import app

__all__ = ["app"]
