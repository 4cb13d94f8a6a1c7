"""Topics whose creation is answered on a connection that breaks: the next attempt finds them there."""

from typing import Any

import pytest

from tailrace.client.admin.topics import NewTopic
from tailrace.client.blocking import Admin
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.connection import Connection
from tailrace.protocol.messages.topics import CreateTopicsRequest
from testkit.nodes.admin_server import AdminServer
from testkit.nodes.data_path import BROKER


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[CreateTopicsRequest]:
    """Lose the answer to the first request for new topics; returns the requests."""
    ask, requests = Connection.ask, []

    async def lossy(self: Connection, request: Any, *args: Any, **keywords: Any) -> Any:
        answer = await ask(self, request, *args, **keywords)
        if isinstance(request, CreateTopicsRequest):
            requests.append(request)
            if len(requests) == 1:
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the connection was closed")
        return answer

    monkeypatch.setattr(Connection, "ask", lossy)
    return requests


def test_a_topic_of_an_attempt_without_an_answer_is_created(admin: Admin, lost: list[CreateTopicsRequest]) -> None:
    admin.create_topics(
        [
            NewTopic("orders", partitions=3, replication_factor=1, configs={"retention.ms": "3600000"}),
            NewTopic("stock", assignments={0: [BROKER]}),
            "plain",
        ]
    )
    assert len(lost) == 2
    assert [topic.name for topic in admin.list_topics()] == ["orders", "plain", "stock"]


@pytest.mark.parametrize(
    "other",
    [NewTopic("orders", 2), NewTopic("orders", 1, configs={"retention.ms": "5"}), NewTopic("orders", 1, 3)],
    ids=["partitions", "settings", "replicas"],
)
def test_a_topic_of_another_shape_existed_before(
    admin: Admin, server: AdminServer, lost: list[CreateTopicsRequest], other: NewTopic
) -> None:
    lost.append(CreateTopicsRequest(topics=(), timeout_ms=0, validate_only=False))  # no answer is lost yet
    admin.create_topics([NewTopic("orders", 1)])
    lost.clear()
    with pytest.raises(KafkaError) as caught:
        admin.create_topics([other])
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert len(lost) == 2


def test_a_topic_that_exists_is_refused_at_once(admin: Admin, lost: list[CreateTopicsRequest]) -> None:
    lost.append(CreateTopicsRequest(topics=(), timeout_ms=0, validate_only=False))
    admin.create_topics(["orders"])
    with pytest.raises(KafkaError, match="topic 'orders' already exists"):
        admin.create_topics(["orders"])
