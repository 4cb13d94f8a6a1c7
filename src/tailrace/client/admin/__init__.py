"""Administration of a cluster, with one coroutine per question (`Admin`) and one module per subject."""

from tailrace.client.admin.admin import Admin

__all__ = ("Admin",)
