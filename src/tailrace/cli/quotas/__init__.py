"""`tailrace quotas`: limits of users, client ids and addresses."""

from tailrace.cli.quotas.commands import app

__all__ = ["app"]
