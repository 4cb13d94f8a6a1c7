"""What a simulated disk does: how slow it is, and what may be wrong with it."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class DiskTimes:
    """How long things take, in ms, and how often a snapshot is damaged on its way."""

    min_flush_ms: int = 0
    max_flush_ms: int = 5
    max_install_ms: int = 5
    """Validating a large snapshot may take seconds."""
    damage: float = 0.0


class DiskFault(Enum):
    """What is wrong with a disk."""

    EIO = "fails every write"
    FULL = "is full"
