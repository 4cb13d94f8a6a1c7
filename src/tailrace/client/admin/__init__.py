"""Administration of a cluster, with one coroutine per question (`AsyncAdmin`) and one module per subject."""

from tailrace.client.admin.admin import AsyncAdmin

__all__ = ("AsyncAdmin",)
