"""Behaviour of a simulated disk: its speed, and its faults."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class DiskTimes:
    """The times of operations, in ms, and the rate of snapshots that are damaged on the way."""

    min_flush_ms: int = 0
    max_flush_ms: int = 5
    max_install_ms: int = 5
    """Validating a large snapshot may take seconds."""
    damage: float = 0.0


class DiskFault(Enum):
    """The fault of a disk."""

    EIO = "fails every write"
    FULL = "is full"
