"""The command line; `main` finds the module of a noun."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import without Python's garbage collector.

    Imports make hundreds of thousands of objects that stay. Walking them again and again takes up to a fifth of the
    time that a node takes to start.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
