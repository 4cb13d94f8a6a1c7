"""The two shapes that carry all logic.

A *machine* is pure: `step(event, now_ms) -> effects`. It never waits, reads no clock and does no IO; a host feeds it
events and carries out its effects.

A *replicated machine* decides with `decide` and changes with `apply` only, so that a restart is a replay of its log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Event = TypeVar("Event", contravariant=True)
Effect = TypeVar("Effect", covariant=True)
Command = TypeVar("Command", contravariant=True)
Record = TypeVar("Record")
DecidedRecord = TypeVar("DecidedRecord", covariant=True)
DecidedResponse = TypeVar("DecidedResponse", covariant=True)


class Machine(Protocol[Event, Effect]):
    """Events in, effects out."""

    def step(self, event: Event, now_ms: int) -> Sequence[Effect]:
        """Take one event; return what the host must do, in order."""
        ...

    @property
    def next_deadline_ms(self) -> int | None:
        """When the host must come back with a tick although nothing happened, or None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[DecidedRecord, DecidedResponse]):
    """The records that must be committed before the response may be sent. No records: it depends on what was read."""

    records: tuple[DecidedRecord, ...]
    response: DecidedResponse


class ReplicatedMachine(Protocol[Command, Record, DecidedResponse]):
    """State that is a function of its committed records."""

    def decide(self, command: Command, now_ms: int) -> "Decision[Record, DecidedResponse]":
        """Look at the state and decide. Changes nothing."""
        ...

    def apply(self, record: Record) -> None:
        """Change the state. The only place that does; gives the same result on every replica."""
        ...
