"""`tailrace groups`: consumer groups, their progress and their history."""

from tailrace.cli.groups.commands import app

__all__ = ["app"]
