"""Everything that turns foreign bytes into something else, and what must hold for any bytes."""

from fuzz.targets import broker, disk, records, sasl, stored, wire
from fuzz.targets.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (*wire.TARGETS, *records.TARGETS, *stored.TARGETS, *disk.TARGETS, *sasl.TARGETS, *broker.TARGETS)
}

__all__ = ("TARGETS", "Target")
