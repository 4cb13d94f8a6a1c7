"""Topics that are created because clients ask for them: each once, however many wait for it, and only so many."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from tailrace.metadata.commands import CreateTopics, TopicRefused, TopicsCreated
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.server.context import RequestContext
from tailrace.server.metadata.metadata import MetadataHandler
from tailrace.server.metadata.topic_creations import (
    MAX_NAMES,
    MAX_TOPICS_ASKED_FOR,
    MAX_WAITING,
    TopicCreations,
)
from tailrace.testing.disk import SimulatedDisk
from testkit.admin_path import AdminPath
from testkit.ports import RecordingConnection

Told = Mapping[str, KafkaError]


class Controller:
    """Takes commands, and decides them in `decide`."""

    def __init__(self) -> None:
        self.commands: list[tuple[CreateTopics, Any]] = []

    def submit(self, command: CreateTopics, on_done: Any) -> None:
        self.commands.append((command, on_done))

    @property
    def wanted(self) -> list[list[str]]:
        return [[topic.name for topic in command.topics] for command, _ in self.commands]

    def decide(self, index: int, *, refused: str = "") -> None:
        results = tuple(
            TopicRefused(name=topic.name, error=KafkaError(ErrorCode.INVALID_PARTITIONS))
            for topic in self.commands[index][0].topics
            if topic.name == refused
        )
        self.commands[index][1](TopicsCreated(results=results))


class Clients:
    """Clients that ask for topics, and their answers."""

    def __init__(self) -> None:
        self.controller = Controller()
        self.creations = TopicCreations(cast("Any", self.controller))

    def ask(self, *names: str, asked_for: int | None = None) -> list[Told]:
        told: list[Told] = []
        self.creations.create(names, told.append, asked_for=len(names) if asked_for is None else asked_for)
        return told


@pytest.fixture
def clients() -> Clients:
    return Clients()


def codes(told: list[Told]) -> dict[str, ErrorCode]:
    (refusals,) = told
    return {name: refusal.code for name, refusal in refusals.items()}


def test_a_topic_that_many_ask_for_is_created_once_and_all_are_told(clients: Clients) -> None:
    first, second = clients.ask("orders"), clients.ask("orders")
    assert clients.controller.wanted == [["orders"]]
    assert (first, second) == ([], [])
    clients.controller.decide(0)
    assert (codes(first), codes(second)) == ({}, {})
    clients.ask("orders")
    assert clients.controller.wanted == [["orders"], ["orders"]]


def test_a_request_for_several_is_answered_for_all_at_once(clients: Clients) -> None:
    clients.ask("a", "b")
    told = clients.ask("b", "c")
    assert clients.controller.wanted == [["a", "b"], ["c"]]
    clients.controller.decide(1)
    assert told == []
    clients.controller.decide(0, refused="b")
    assert codes(told) == {"b": ErrorCode.INVALID_PARTITIONS}


def test_why_the_controller_was_not_reached_stands_at_each_topic(clients: Clients) -> None:
    told = clients.ask("a", "b")
    clients.controller.commands[0][1](KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    assert codes(told) == dict.fromkeys("ab", ErrorCode.REQUEST_TIMED_OUT)


def test_no_more_clients_wait_than_there_is_room_for(clients: Clients) -> None:
    waiting = [clients.ask("orders") for _ in range(MAX_WAITING)]
    assert codes(clients.ask("orders")) == {"orders": ErrorCode.REQUEST_TIMED_OUT}
    assert codes(clients.ask("other")) == {"other": ErrorCode.REQUEST_TIMED_OUT}
    clients.controller.decide(0)
    assert [codes(told) for told in waiting] == [{}] * MAX_WAITING
    assert clients.ask("other") == []


def test_clients_that_wait_have_asked_for_so_many_topics_and_no_more(clients: Clients) -> None:
    clients.ask("orders", asked_for=MAX_TOPICS_ASKED_FOR)
    assert codes(clients.ask("other")) == {"other": ErrorCode.REQUEST_TIMED_OUT}
    clients.controller.decide(0)
    assert clients.ask("other") == []


def test_so_many_topics_are_on_their_way_and_the_others_are_refused_at_once(clients: Clients) -> None:
    names = [f"topic-{number}" for number in range(MAX_NAMES + 1)]
    told = clients.ask(*names)
    assert clients.controller.wanted == [names[:-1]]
    assert codes(clients.ask("other")) == {"other": ErrorCode.REQUEST_TIMED_OUT}
    assert clients.ask(names[0]) == []
    clients.controller.decide(0)
    assert codes(told) == {names[-1]: ErrorCode.REQUEST_TIMED_OUT}
    assert clients.ask("other") == []


def test_a_client_may_ask_for_more_topics_than_are_created_at_once() -> None:
    controller = Controller()
    node = AdminPath("/data", files=SimulatedDisk())
    controller.image = node.controller.image  # type: ignore[attr-defined]
    handler = MetadataHandler(
        controller=cast("Any", controller),
        broker_id=node.controller.image.alive_brokers()[0].broker_id,
        cluster_id="mine",
        auto_create=True,
        offline_replica=lambda *_: None,
    )
    names = tuple(MetadataRequestTopic(name=f"topic-{number}") for number in range(MAX_NAMES + 5))
    for _ in range(2):
        connection = RecordingConnection()
        context = RequestContext(
            connection=connection, slot=connection.next_slot(), api_key=3, api_version=12, correlation_id=1,
            client_id=None,
        )  # fmt: skip
        assert handler.handle(MetadataRequest(topics=names), context) is None
    assert [len(wanted) for wanted in controller.wanted] == [MAX_NAMES]
