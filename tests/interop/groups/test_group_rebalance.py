"""A group of two members of each client: partitions are shared, move when a member leaves, and no record is missed."""

from collections.abc import Callable
from contextlib import closing
from uuid import uuid4

import pytest

from interop.clients import CLIENTS, ForeignClient, Member, absent
from interop.java_client import JavaConsumerProtocol
from interop.librdkafka import ConfluentConsumerProtocol, Message
from interop.own_client import OwnClassic, OwnConsumerProtocol
from tailrace.client.blocking import Admin, Producer
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

PARTITIONS = 4
EVERY_CLIENT = (
    *CLIENTS,
    ConfluentConsumerProtocol(),
    JavaConsumerProtocol(),
    OwnClassic(),
    OwnConsumerProtocol(),
)


def _send(bootstrap: str, topic: str, values: range) -> None:
    with Producer(bootstrap) as producer:
        for value in values:
            producer.send(topic, value=str(value).encode(), partition=value % PARTITIONS)
        producer.flush()


def _poll_until(members: list[Member], seen: list[Message], holds: Callable[[], bool], what: str) -> None:
    def condition() -> bool:
        for member in members:
            seen.extend(member.poll())
        return bool(holds())

    wait_until(condition, what)


@pytest.mark.interop
@pytest.mark.parametrize("client", EVERY_CLIENT, ids=lambda client: client.name)
def test_two_members_share_and_take_over(tailrace_cluster: Cluster, client: ForeignClient) -> None:
    if why := absent(client):
        pytest.skip(why)
    bootstrap, topic, group = tailrace_cluster.bootstrap_servers, f"shared-{uuid4()}", f"group-{uuid4()}"
    with Admin(bootstrap) as admin:
        admin.create_topics({topic: PARTITIONS})
    seen: list[Message] = []
    everything = set(range(PARTITIONS))
    with closing(client.join(bootstrap, topic, group)) as first:
        _poll_until([first], seen, lambda: first.assignment() == everything, "the first member has all partitions")
        _send(bootstrap, topic, range(40))
        _poll_until([first], seen, lambda: len(seen) >= 40, "the first member reads all records")

        with closing(client.join(bootstrap, topic, group)) as second:
            both = [first, second]

            def shared() -> bool:
                a, b = first.assignment(), second.assignment()
                return a | b == everything and not a & b and bool(a) and bool(b)

            _poll_until(both, seen, shared, "two members share the partitions")
            _send(bootstrap, topic, range(40, 80))
            wanted = {str(value).encode() for value in range(80)}
            _poll_until(both, seen, lambda: {m.value for m in seen} >= wanted, "the two read all that is sent")

        _poll_until([first], seen, lambda: first.assignment() == everything, "the first member has all again")
        _send(bootstrap, topic, range(80, 120))
        wanted = {str(value).encode() for value in range(120)}
        _poll_until([first], seen, lambda: {m.value for m in seen} >= wanted, "nothing is missed")
