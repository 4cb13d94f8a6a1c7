"""`tailrace users`: users with passwords, for listeners with SASL."""

from tailrace.cli.users.commands import app

__all__ = ["app"]
