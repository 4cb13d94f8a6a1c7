"""Topics that are created because clients ask for them: each is requested once, and all clients meanwhile wait for it.

Without an active controller the wait has no known end. So there is room for so many requests and so many topics;
more are refused at once with REQUEST_TIMED_OUT, and clients ask again. (Kafka does not have them wait, and
does not send a topic twice either.)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tailrace.metadata.commands import ControllerResponse, CreateTopics, TopicRefused, TopicsCreated, TopicSpec
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.server.ports import Controller

MAX_WAITING: Final = 1_000
"""Requests that wait for topics."""
MAX_TOPICS_ASKED_FOR: Final = 100_000
"""Topics that these may name together, existing ones included: requests are kept until they are answered."""
MAX_NAMES: Final = 10_000
"""Topics on their way: of one request, and of all together."""

OnDone = Callable[[Mapping[str, KafkaError]], None]
"""Told which topics could not be created, and why."""


class _WaitingTopic:
    """A request that waits for topics."""

    __slots__ = ("asked_for", "left", "on_done", "refusals")

    def __init__(self, names: Sequence[str], refusals: dict[str, KafkaError], on_done: OnDone, asked_for: int) -> None:
        self.left = len(names)
        self.refusals = refusals
        self.on_done = on_done
        self.asked_for = asked_for


class TopicCreations:
    """All that are on their way from one node."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._by_name: dict[str, list[_WaitingTopic]] = {}
        self._waiting = 0
        self._asked_for = 0

    def create(self, names: Sequence[str], on_done: OnDone, *, asked_for: int) -> None:
        """Have these created. `on_done` is called once, perhaps before this returns; `asked_for` is how many topics
        the request names."""
        if self._waiting >= MAX_WAITING or self._asked_for + asked_for > MAX_TOPICS_ASKED_FOR:
            on_done(dict.fromkeys(names, _refusal()))
            return
        new = [name for name in names if name not in self._by_name]
        refused = new[max(0, MAX_NAMES - len(self._by_name)) :]
        new = new[: len(new) - len(refused)]
        refusals = dict.fromkeys(refused, _refusal())
        awaited = [name for name in names if name not in refusals]
        if not awaited:
            on_done(refusals)
            return
        self._waiting += 1
        self._asked_for += asked_for
        waiting = _WaitingTopic(awaited, refusals, on_done, asked_for)
        for name in awaited:
            self._by_name.setdefault(name, []).append(waiting)
        if new:
            self._send(new)

    def _send(self, names: Sequence[str]) -> None:
        # Sizes are the cluster's defaults: the client has no say here.
        topics = tuple(TopicSpec(name=name) for name in names)
        command = CreateTopics(topics=topics, requested_by="auto.create.topics.enable")
        self._controller.submit(command, lambda outcome: self._decided(names, outcome))

    def _decided(self, names: Sequence[str], outcome: ControllerResponse | KafkaError) -> None:
        refusals = _refusals(outcome, names)
        over: list[_WaitingTopic] = []
        for name in names:
            refusal = refusals.get(name)
            for waiting in self._by_name.pop(name):
                if refusal is not None:
                    waiting.refusals[name] = refusal
                waiting.left -= 1
                if not waiting.left:
                    over.append(waiting)
        for waiting in over:
            self._waiting -= 1
            self._asked_for -= waiting.asked_for
        for waiting in over:
            waiting.on_done(waiting.refusals)


def _refusal() -> KafkaError:
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, "too many topics are being created; ask again later")


def _refusals(outcome: ControllerResponse | KafkaError, names: Sequence[str]) -> Mapping[str, KafkaError]:
    """The reasons why topics could not be created."""
    if isinstance(outcome, KafkaError):
        return dict.fromkeys(names, outcome)
    assert isinstance(outcome, TopicsCreated)
    return {result.name: result.error for result in outcome.results if isinstance(result, TopicRefused)}
