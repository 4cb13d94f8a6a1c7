"""The shapes that logic has: pure classes, which wait for nothing, read no clock and do no IO. Hosts run the machines.

`Machine`          turns an event into effects: raft's node, a follower, the members of one group, a consumer
`KeyedMachine`     the same for many things by key, with one clock for all things: the groups of a partition
`StagedMachine`    decides on records while earlier records are on their way into its log: groups, transactions
`SteppedMachine`   decides and changes in steps that leave turns to other work, on an immutable image: the controller

The last two are replicated: only records change their state, so a restart is a replay of the log.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Key = TypeVar("Key", contravariant=True)
Event = TypeVar("Event", contravariant=True)
Effect = TypeVar("Effect", covariant=True)
Command = TypeVar("Command", contravariant=True)
Record = TypeVar("Record")
Response = TypeVar("Response", covariant=True)
SteppedResponse = TypeVar("SteppedResponse")
Image = TypeVar("Image")
Change = TypeVar("Change", covariant=True)
DecidedRecord = TypeVar("DecidedRecord", covariant=True)


class Machine(Protocol[Event, Effect]):
    """Events in, effects out."""

    def step(self, event: Event, now_ms: int) -> Sequence[Effect]:
        """Take one event; return what the host must do, in order."""
        ...

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which the host must come back with a tick although nothing happened, or None."""
        ...


class KeyedMachine(Protocol[Key, Event, Effect]):
    """Events of many things in, effects out."""

    def step(self, key: Key, event: Event, now_ms: int, /) -> Sequence[Effect]:
        """Take one event of one thing; return what the host must do, in order."""
        ...

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Note that time has passed, for every thing."""
        ...

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` must be called although nothing happened, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed, and a deadline may have. Ticks too early or too many do no harm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[DecidedRecord, Response]):
    """The records that must be committed before the response may be sent. No records: it depends on a read alone."""

    records: tuple[DecidedRecord, ...]
    response: Response


class StagedMachine(Protocol[Command, Record, Response]):
    """State that is a function of its committed records, and decisions that see the staged ones too.

    `apply` for each record of a replay; then `stage` for the records of a decision that are appended, and for each of
    these records `commit` or `discard`, in the order of the log.
    """

    def apply(self, record: Record) -> None:
        """Take one record of the log that is being replayed."""
        ...

    def decide(self, command: Command, now_ms: int) -> Decision[Record, Response]:
        """Look at the state and decide; `now_ms` since 1970. Changes nothing. Raises KafkaError for a refusal."""
        ...

    def stage(self, records: Iterable[Record]) -> None:
        """Note records that are on their way into the log."""
        ...

    def commit(self, records: Sequence[Record]) -> None:
        """Commit records that were staged before: the records change the state."""
        ...

    def discard(self, records: Sequence[Record]) -> None:
        """Discard records that were staged before: the records are not in the log."""
        ...


class SteppedMachine(Protocol[Command, Record, SteppedResponse, Image, Change]):
    """State that is an immutable image, and decisions and changes that take long: each method is a generator of steps.

    `deciding`, then `trial` of the decision's records on the image, while nothing is appended; then the append, and
    `adopt` of the image that `trial` has made. `at_offset`, if other records were appended between the two.
    """

    def deciding(
        self, command: Command, now_ms: int, *, next_offset: int
    ) -> Generator[None, None, Decision[Record, SteppedResponse]]:
        """Look at the image and decide; `next_offset` is where the first record will stand in the log."""
        ...

    def at_offset(self, decision: Decision[Record, SteppedResponse], offset: int) -> Decision[Record, SteppedResponse]:
        """The decision with its first record at this offset."""
        ...

    def trial(self, records: Iterable[Record]) -> Generator[None, None, tuple[Image, Change]]:
        """The image with these records applied, and the difference."""
        ...

    def adopt(self, image: Image) -> None:
        """Take the image that `trial` has made of the present image and the records just appended."""
        ...
