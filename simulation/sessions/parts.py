"""The parts of a world of fetch sessions while an event happens, and what may still happen."""

from typing import Final, NamedTuple

from simulation.sessions.broker import Sender, SessionBroker
from simulation.sessions.reader import CONSUMER, ScopeReader
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.fetch import FetchRequest

FOLLOWER: Final = BrokerId(2)
LATEST: Final = 18


class SessionBudget(NamedTuple):
    """The numbers of events that may still happen."""

    appends: int = 0
    log_starts: int = 0
    errors: int = 0
    """Errors of logs that cannot be read for some time."""
    losses: int = 0
    """Requests and answers that are lost."""
    delays: int = 0
    """Readers that give up although the request or the answer is still on its way."""
    duplicates: int = 0
    """Requests that come twice."""
    broker_restarts: int = 0
    reader_restarts: int = 0
    closes: int = 0
    evictions: int = 0
    """Times at which all sessions that no request waits for have been inactive for long."""
    forgets: int = 0
    throttles: int = 0
    """Partitions whose records a throttle keeps from the follower."""
    thefts: int = 0
    """Requests of a reader in the session of another reader."""


class SessionKind(NamedTuple):
    """The readers and limits of a scope."""

    readers: int = 1
    partitions: int = 2
    is_follower: bool = False
    """Whether the first reader is a follower; the other readers are consumers."""
    version: int = LATEST
    slots: int = 10
    max_bytes: int = 1 << 20
    """The limit of an answer. A record has 10 bytes."""
    max_partitions: int | None = None
    """The limit of a request."""


class SessionMessage(NamedTuple):
    """A request on its way."""

    sender: Sender
    request: FetchRequest
    version: int


class Parts:
    """The whole world, while an event happens."""

    def __init__(self, kind: SessionKind, budget: SessionBudget) -> None:
        self.budget = budget
        self.broker = SessionBroker(
            partitions=kind.partitions, slots=kind.slots, follower=FOLLOWER if kind.is_follower else None
        )
        self.readers = [
            ScopeReader(
                index,
                partitions=range(kind.partitions),
                replica_id=FOLLOWER if kind.is_follower and not index else CONSUMER,
                version=kind.version,
                max_bytes=kind.max_bytes,
                max_partitions=kind.max_partitions,
            )
            for index in range(kind.readers)
        ]
        self.requests: list[SessionMessage] = []

    @staticmethod
    def message(reader: ScopeReader) -> SessionMessage:
        """The reader's next fetch."""
        return SessionMessage(*reader.next_request(), reader.version)

    def spend(self, name: str) -> None:
        """Take an event off the budget."""
        self.budget = self.budget._replace(**{name: getattr(self.budget, name) - 1})
