"""Decided commits of sinks that wait until all their members have their markers, or until their time is over."""

from collections.abc import Callable
from typing import Final

from tailrace.coordinators.transactions.commands import CommitSink, Response
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.server.callbacks import call_safely
from tailrace.server.waiters import Deadlines

OnDone = Callable[[Response | KafkaError], None]
Submit = Callable[[CommitSink, OnDone], None]

LONGEST_WAIT_MS: Final = 600_000


class _WaitingCommit:
    """A commit that is decided."""

    __slots__ = ("answer", "batch", "commits", "on_done", "sink_id", "timeout_ms")

    def __init__(
        self, commits: "SinkCommits", command: CommitSink, answer: Response, on_done: OnDone, timeout_ms: int
    ) -> None:
        self.commits = commits
        self.sink_id, self.batch = command.sink_id, command.batch
        self.answer = answer
        self.on_done = on_done
        self.timeout_ms = timeout_ms

    def expire(self) -> None:
        self.commits.expired(self)


class SinkCommits:
    """The waiting commits of one coordinator."""

    def __init__(self, *, submit: Submit, is_complete: Callable[[str, int], bool], deadlines: Deadlines) -> None:
        """`is_complete`: whether every transaction that was committed in a sink up to a batch has its markers."""
        self._submit = submit
        self._is_complete = is_complete
        self._deadlines = deadlines
        self._by_sink: dict[str, dict[_WaitingCommit, None]] = {}

    def add(self, command: CommitSink, on_done: OnDone, timeout_ms: int) -> None:
        """Decide the command; `on_done` is called once: with a refusal, when all members have their markers, or with
        REQUEST_TIMED_OUT (7) when markers are missing `timeout_ms` after the decision."""

        def decided(outcome: Response | KafkaError) -> None:
            if isinstance(outcome, KafkaError) or self._is_complete(command.sink_id, command.batch):
                on_done(outcome)
                return
            bounded_ms = min(max(timeout_ms, 0), LONGEST_WAIT_MS)
            waiting = _WaitingCommit(self, command, outcome, on_done, bounded_ms)
            self._by_sink.setdefault(command.sink_id, {})[waiting] = None
            self._deadlines.add(waiting, bounded_ms)

        self._submit(command, decided)

    def changed(self, sink_id: str) -> None:
        """Answer the commits that are complete now: a member of the sink has its markers."""
        for waiting in tuple(self._by_sink.get(sink_id, ())):
            if self._is_complete(sink_id, waiting.batch):
                self._answer(waiting, waiting.answer)

    def expired(self, waiting: _WaitingCommit) -> None:
        """Answer a commit whose time is over."""
        detail = f"batch {waiting.batch} of sink {waiting.sink_id!r} is decided, and its markers are being written"
        self._answer(waiting, KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail))

    def close(self, refusal: KafkaError) -> None:
        """Answer every commit with this refusal."""
        for waiting in [waiting for of_sink in self._by_sink.values() for waiting in of_sink]:
            self._answer(waiting, refusal)

    def _answer(self, waiting: _WaitingCommit, answer: Response | KafkaError) -> None:
        of_sink = self._by_sink[waiting.sink_id]
        del of_sink[waiting]
        if not of_sink:
            del self._by_sink[waiting.sink_id]
        self._deadlines.remove(waiting, waiting.timeout_ms)
        call_safely("answer-failed", waiting.on_done, answer)
