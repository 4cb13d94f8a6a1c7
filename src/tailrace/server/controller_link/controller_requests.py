"""Requests of this node to the active controller, on this node or another, with retries.

1. A request ends once: its answer is delivered, or it fails with REQUEST_TIMED_OUT when its time is over. A message
   that was sent before may still take effect; the description of each kind of request says what that means.
2. A request is tried again after NOT_CONTROLLER, without an answer, and while no leader is known: after 20 ms, then
   twice as long each time, at most 250 ms.
3. The answer, or the decision on this node, is delivered when this node has applied, and acted on, the records that the
   answer depends on, so that the next read on this node sees the change. If the request's time is over before, the
   answer is delivered at that time: the answer is still right.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.server.ports import Clock, Peer
from tailrace.server.waiters import Deadlines

FIRST_BACKOFF_MS: Final = 20
LONGEST_BACKOFF_MS: Final = 250
ATTEMPT_MS: Final = 2_000
"""The longest wait for the answer to one attempt (Kafka's controller.quorum.request.timeout.ms)."""
APPLIED_MEANWHILE: Final = -1
"""A value in place of an end offset when this node is itself the active controller: it stands for the end of the
records that the node has applied since the request came."""


class Outcome(NamedTuple):
    """The active controller's answer to a request."""

    end_offset: int
    """The end offset of the records that the answer depends on; 0: deliver at once."""
    deliver: Callable[[], None]


OnOutcome = Callable[[Outcome | None], None]
"""Called at most once per attempt; None: the receiver is not the active controller."""


class ControllerRequest(Protocol):
    """A request to the active controller."""

    oldest_version: int
    """The lowest version of the message."""
    is_question: bool
    """Whether the request only asks, and changes nothing."""

    def carry_out_here(self, on_outcome: OnOutcome) -> None:
        """Carry the request out: the active controller is on this node."""
        ...

    def message(self, leader_epoch: int) -> Any:
        """The message for the leader of this epoch."""
        ...

    def outcome(self, answer: Any) -> Outcome | None:
        """The outcome in the answer to the message; None for NOT_CONTROLLER."""
        ...

    def fail(self, error: KafkaError) -> None:
        """Report an error: the request was not carried out, or its outcome is unknown."""
        ...


class Quorum(Protocol):
    """This node's replica of the metadata: a `QuorumController`."""

    @property
    def is_active(self) -> bool: ...

    @property
    def leader_id(self) -> BrokerId: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def applied_end_offset(self) -> int: ...

    def when_applied(self, end_offset: int, callback: Callable[[], None]) -> None:
        """Call `callback` when the image of this node has every record below `end_offset`, and the listeners have acted
        on these records."""
        ...


class _Run:
    """A request without an outcome yet."""

    __slots__ = (
        "applied_before",
        "attempt",
        "backoff_ms",
        "deadline_ms",
        "is_over",
        "outcome",
        "request",
        "requests",
        "timeout_ms",
    )

    def __init__(
        self, requests: "ControllerRequests", request: ControllerRequest, *, deadline_ms: int, timeout_ms: int
    ) -> None:
        self.requests = requests
        self.request = request
        self.deadline_ms = deadline_ms
        self.timeout_ms = timeout_ms
        self.backoff_ms = FIRST_BACKOFF_MS
        self.attempt = 0
        self.applied_before = 0
        self.is_over = False
        self.outcome: Outcome | None = None

    def expire(self) -> None:
        self.requests.expired(self)


class ControllerRequests:
    """The requests of one node that have no outcome yet."""

    def __init__(self, *, quorum: Quorum, peer: Peer, node_id: int, clock: Clock) -> None:
        """`peer` knows the controllers by their ids."""
        self._quorum = quorum
        self._peer = peer
        self._node_id = node_id
        self._clock = clock
        self._deadlines = Deadlines(clock)
        self._runs: dict[ControllerRequest, _Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def run(self, request: ControllerRequest, timeout_ms: int) -> None:
        """Send a request, with retries within this time. The outcome may come before `run` returns."""
        run = _Run(self, request, deadline_ms=self._clock.monotonic_ms() + timeout_ms, timeout_ms=timeout_ms)
        self._runs[request] = run
        self._deadlines.add(run, timeout_ms)
        self._try(run)

    def forget(self, request: ControllerRequest) -> None:
        """Drop a request that has no outcome yet, without a call of `fail`."""
        run = self._runs.get(request)
        if run is not None:
            self._end(run)

    def close(self) -> None:
        """End all requests, since this node stops: deliver the answers that have come, and fail the unanswered
        requests."""
        for run in list(self._runs.values()):
            self._end(run)
            if run.outcome is not None:
                run.outcome.deliver()
            else:
                run.request.fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "this node stops"))

    def _try(self, run: _Run) -> None:
        if run.is_over:
            return
        run.attempt += 1
        attempt = run.attempt

        def on_outcome(outcome: Outcome | None) -> None:
            if not run.is_over and attempt == run.attempt:
                self._on_outcome(run, outcome)

        quorum = self._quorum
        if quorum.is_active:
            run.applied_before = quorum.applied_end_offset
            run.request.carry_out_here(on_outcome)
            return
        leader_id = quorum.leader_id
        if leader_id < 0 or leader_id == self._node_id:
            self._try_later(run)
            return
        self._peer.send(
            leader_id,
            run.request.message(quorum.leader_epoch),
            lambda answer: on_outcome(None if answer is None else run.request.outcome(answer)),
            oldest_version=run.request.oldest_version,
            timeout_ms=max(1, min(ATTEMPT_MS, run.deadline_ms - self._clock.monotonic_ms())),
        )

    def _try_later(self, run: _Run) -> None:
        due_ms = self._clock.monotonic_ms() + run.backoff_ms
        run.backoff_ms = min(2 * run.backoff_ms, LONGEST_BACKOFF_MS)
        if due_ms < run.deadline_ms:
            self._clock.call_at(due_ms, lambda: self._try(run))

    def _on_outcome(self, run: _Run, outcome: Outcome | None) -> None:
        if outcome is None:
            self._try_later(run)
            return
        end_offset = outcome.end_offset
        if end_offset == APPLIED_MEANWHILE:
            applied = self._quorum.applied_end_offset
            end_offset = applied if applied > run.applied_before else 0
        if end_offset <= 0:
            self._deliver(run, outcome)
            return
        run.outcome = outcome
        self._quorum.when_applied(end_offset, lambda: self._deliver(run, outcome))

    def _deliver(self, run: _Run, outcome: Outcome) -> None:
        if not run.is_over:
            self._end(run)
            outcome.deliver()

    def expired(self, run: _Run) -> None:
        """End a request whose time is over."""
        if run.is_over:
            return
        if run.outcome is not None:
            self._deliver(run, run.outcome)
            return
        self._end(run)
        run.request.fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT, self._timeout_detail(run)))

    def _timeout_detail(self, run: _Run) -> str:
        quorum, time = self._quorum, f"within {run.timeout_ms} ms"
        if quorum.leader_id < 0:
            reason = f"no active controller was known {time}; a majority of the controllers must run"
        elif quorum.leader_id == self._node_id:
            reason = f"controller {quorum.leader_id}, this node, did not become active {time}"
        else:
            reason = f"controller {quorum.leader_id} did not answer {time}; a majority of the controllers must run"
        return reason if run.request.is_question else f"{reason}; what was asked for may have been done"

    def _end(self, run: _Run) -> None:
        run.is_over = True
        del self._runs[run.request]
        self._deadlines.remove(run, run.timeout_ms)
