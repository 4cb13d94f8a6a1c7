"""The parts of a target."""

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Target(NamedTuple):
    """A way into the product for foreign bytes."""

    name: str
    promise: str
    """The promise that holds for all bytes."""
    check: Callable[[bytes], None]
    """Raises if it does not."""
    seeds: Callable[[], Iterable[bytes]]
    """Bytes that get far."""
    max_bytes: int = 4096
