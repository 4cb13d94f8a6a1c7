"""Imports without Python's garbage collector: they make hundreds of thousands of objects that stay, and no garbage.

Looking through these again and again takes up to a fifth of the time that a node takes to start.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """No collection meanwhile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
