"""`tailrace acls`: rules of access, and the rule that decides."""

from tailrace.cli.acls.commands import app

__all__ = ["app"]
