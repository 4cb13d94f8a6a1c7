"""Members of ours, of librdkafka and of Java in one group by KIP-848: each partition has one owner."""

from contextlib import ExitStack, closing
from uuid import uuid4

import pytest

from interop.clients import ForeignClient, Member, absent
from interop.java_client import JavaConsumerProtocol
from interop.librdkafka import ConfluentConsumerProtocol, Message
from interop.own_client import OwnConsumerProtocol
from tailrace.client.blocking import Admin, Producer
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

PARTITIONS = 6
EVERYTHING = set(range(PARTITIONS))
CLIENTS: tuple[ForeignClient, ...] = (OwnConsumerProtocol(), ConfluentConsumerProtocol(), JavaConsumerProtocol())


def _has_one_owner_each(members: list[Member]) -> bool:
    held = [member.assignment() for member in members]
    return set().union(*held) == EVERYTHING and sum(map(len, held)) == PARTITIONS and all(held)


@pytest.mark.interop
def test_members_of_three_clients_share_and_take_over(tailrace_cluster: Cluster) -> None:
    if why := next(filter(None, map(absent, CLIENTS)), None):
        pytest.skip(why)
    bootstrap, topic, group = tailrace_cluster.bootstrap_servers, f"mixed-{uuid4()}", f"group-{uuid4()}"
    seen: list[Message] = []
    sent = 0
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer, ExitStack() as stack:
        admin.create_topics({topic: PARTITIONS})

        def settle(members: list[Member]) -> None:
            nonlocal sent

            def polled() -> None:
                for member in members:
                    seen.extend(member.poll())

            def is_shared() -> bool:
                polled()
                return _has_one_owner_each(members)

            wait_until(is_shared, f"{len(members)} members share all partitions")
            for number in range(sent, sent + 2 * PARTITIONS):
                producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
            producer.flush()
            sent += 2 * PARTITIONS
            wanted = {b"%d" % number for number in range(sent)}

            def is_read() -> bool:
                polled()
                return {message.value for message in seen} >= wanted

            wait_until(is_read, "all records are read")

        members: list[Member] = []
        for client in CLIENTS:
            members.append(stack.enter_context(closing(client.join(bootstrap, topic, group))))
            settle(members)
        while len(members) > 1:
            members.pop(0).close()
            settle(members)
