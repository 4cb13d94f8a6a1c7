"""The ports of the server: clock, disk, peers and the like. `node` has the real ports, `testing` simulated ports."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import KafkaError
from tailrace.model.identity import ClientIdentity
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages import fetch, quorum
from tailrace.storage import Log

Buffer = bytes | bytearray | memoryview

QuorumRequest = (
    quorum.VoteRequest
    | quorum.BeginQuorumEpochRequest
    | quorum.EndQuorumEpochRequest
    | fetch.FetchRequest
    | quorum.FetchSnapshotRequest
)
"""The requests of one replica of the metadata log to another."""
QuorumResponse = (
    quorum.VoteResponse
    | quorum.BeginQuorumEpochResponse
    | quorum.EndQuorumEpochResponse
    | fetch.FetchResponse
    | quorum.FetchSnapshotResponse
)


class Timer(Protocol):
    """A call that has been scheduled."""

    def cancel(self) -> None:
        """Forget the callback. Does nothing once the callback has run."""
        ...


class Clock(Protocol):
    """Time, and calls in the future. All calls run on the one event loop, never inside the caller."""

    def now_ms(self) -> int:
        """Wall-clock time, ms since 1970: for timestamps that are stored. May jump."""
        ...

    def monotonic_ms(self) -> int:
        """Time that never jumps, ms from an arbitrary start: for timeouts and deadlines."""
        ...

    def call_at(self, monotonic_ms: int, callback: Callable[[], None]) -> Timer:
        """Run `callback` at this monotonic time, or soon if the time has passed."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run `callback` after the current callback has returned."""
        ...


class Disk(Protocol):
    """Flushes logs in groups: one round at a time per log directory; logs that are requested meanwhile wait for the
    next round."""

    def flush(self, log: Log, on_done: Callable[[], None]) -> None:
        """Make the records that `log` has now durable, then call `on_done` on the event loop.

        Under `log.durability=page-cache` nothing is flushed, and `on_done` is called in a later turn. A failed flush is
        fatal for the directory and never retried: the disk stops the process through the handler that `node` passed to
        the disk; `on_done` is not called. A log that has gone offline before its flush is skipped, and `on_done` is
        still called: so no caller waits for ever. The result is in `flushed_offset`.
        """
        ...

    def carry_out(self, work: Callable[[], None], on_done: Callable[[], None]) -> None:
        """Run `work`, which waits for the disk and uses nothing but files, then call `on_done` on the event loop.

        Works run in the order of their requests, with at most one flush round between two works, whatever
        `log.durability` says. A work that raises is as fatal as a failed flush.
        """
        ...


class Peer(Protocol):
    """The other nodes. A node has a `Peer` for controllers and a `Peer` for brokers, with separate addresses and
    connections."""

    def send(
        self,
        node_id: int,
        request: Any,
        on_reply: Callable[[Any], None],
        *,
        oldest_version: int = 0,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a request of `protocol.messages` to the node with this id or, for a number below -1, to the place with
        this name; never in a version below `oldest_version`. The values of the request must not change before the
        answer.

        `on_reply` is called once, on the event loop in a turn of its own and never inside `send`, with the message of
        the answer, or with None if there will be no answer: no address, no connection, a broken connection, no common
        version, bytes that are not an answer, no answer within `timeout_ms` (None: the default of the `Peer`). Once
        this node has stopped, `on_reply` is not called. Bytes in an answer are views that are valid until `on_reply`
        returns.

        Fetches, parts of snapshots, heartbeats, calls between voters, and all other requests use separate connections:
        so no request waits behind a request that the receiver may keep waiting.
        """
        ...


class ServerConnection(Protocol):
    """A client's connection, as seen by handlers."""

    @property
    def is_open(self) -> bool: ...

    @property
    def identity(self) -> ClientIdentity:
        """The client, as far as known."""
        ...

    def answer(self, slot: int, chunks: Sequence[Buffer] | None) -> None:
        """Answer the request in this slot. `chunks` have the header of the answer, but not the frame length; None: the
        request gets no answer.

        Answers leave in the order of their requests. Does nothing once the connection is closed.
        """
        ...

    def awaits_answer(self, slot: int) -> bool:
        """Whether `answer` has not been called for this slot yet."""
        ...

    def suspend(self) -> None:
        """Carry out no further request of the client until `go_on` was called as often as `suspend`: a request is being
        carried out in slices. The bytes of further requests are kept."""
        ...

    def go_on(self) -> None:
        """Carry out the client's requests again, in a later turn."""

    def throttle(self, throttle_ms: int) -> None:
        """Send the answers, and read nothing more from the client for this time: a quota of the client is used up
        (KIP-219). A longer throttle that has begun goes on."""
        ...

    def close(self, reason: str) -> None:
        """Close at once; `reason` goes to the log."""
        ...

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the connection has closed, for requests that wait."""
        ...


class Controller(Protocol):
    """The cluster's metadata, as seen by handlers and coordinators."""

    @property
    def image(self) -> ClusterImage:
        """The committed image."""
        ...

    @property
    def leader_id(self) -> BrokerId:
        """The active controller."""
        ...

    def submit(self, command: ControllerCommand, on_done: Callable[[ControllerResponse | KafkaError], None]) -> None:
        """Submit a command. `on_done` is called once, when the decision is committed and this broker has acted on it;
        perhaps before `submit` returns."""
        ...
