"""A running group of real clients changes to KIP-848 member by member, and back; every record is read."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from uuid import uuid4

import pytest

from interop.clients import ForeignClient, Member, absent
from interop.java_client import Java, JavaConsumerProtocol
from interop.librdkafka import Confluent, ConfluentConsumerProtocol, Message
from interop.own_client import OwnClassic, OwnConsumerProtocol
from tailrace.client.blocking import Admin, Producer
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

PARTITIONS = 6
EVERYTHING = set(range(PARTITIONS))


class _Group:
    """The members that run, what they have read, and records that keep coming."""

    def __init__(self, bootstrap: str, topic: str, producer: Producer) -> None:
        self.bootstrap, self.topic, self.producer = bootstrap, topic, producer
        self.members: list[Member] = []
        self.read: list[Message] = []
        self.sent = 0

    def poll_until(self, holds: Callable[[], bool], what: str) -> None:
        def condition() -> bool:
            for member in self.members:
                self.read.extend(member.poll())
            return bool(holds())

        wait_until(condition, what)

    def is_shared(self) -> bool:
        assigned = [partition for member in self.members for partition in member.assignment()]
        return sorted(assigned) == sorted(EVERYTHING) and all(member.assignment() for member in self.members)

    def settle(self, what: str) -> None:
        """Until the members share the partitions, and have read what is sent to them then."""
        self.poll_until(self.is_shared, f"{what}: all partitions are shared")
        for number in range(self.sent, self.sent + 12):
            self.producer.send(self.topic, value=str(number).encode(), partition=number % PARTITIONS)
        self.producer.flush()
        self.sent += 12
        wanted = {str(number).encode() for number in range(self.sent)}
        self.poll_until(lambda: {message.value for message in self.read} >= wanted, f"{what}: all records are read")


@pytest.mark.interop
@pytest.mark.parametrize(
    ("classic", "modern"),
    [
        (Confluent(), ConfluentConsumerProtocol()),
        (Java(), JavaConsumerProtocol()),
        pytest.param(OwnClassic(), OwnConsumerProtocol(), marks=pytest.mark.always),
    ],
    ids=lambda client: client.name,
)
def test_a_running_group_changes_over_and_back(
    tailrace_cluster: Cluster, classic: ForeignClient, modern: ForeignClient
) -> None:
    if why := absent(classic):
        pytest.skip(why)
    bootstrap, topic = tailrace_cluster.bootstrap_servers, f"migrates-{uuid4()}"
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer, ExitStack() as stack:
        admin.create_topics({topic: PARTITIONS})
        group = _Group(bootstrap, topic, producer)

        def add(client: ForeignClient) -> None:
            member = client.join(bootstrap, topic, f"group-{topic}")
            stack.enter_context(closing(member))
            group.members.append(member)

        def kind() -> str:
            (described,) = [listing.type for listing in admin.list_groups() if listing.group == f"group-{topic}"]
            return str(described)

        def remove_oldest() -> None:
            group.members.pop(0).close()

        add(classic)
        add(classic)
        group.settle("two classic members")
        assert kind() == "classic"
        add(modern)
        group.settle("a member of KIP-848 has joined")
        assert kind() == "consumer"
        remove_oldest()
        add(modern)
        remove_oldest()
        group.settle("members of KIP-848 only")
        add(classic)
        group.settle("a classic member has joined")
        remove_oldest()
        add(classic)
        remove_oldest()
        group.settle("classic members only")
        assert kind() == "classic"
