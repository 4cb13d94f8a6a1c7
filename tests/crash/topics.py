"""Topics that tests make and look for while quorums elect and brokers come and go.

A change is answered when the asked node has applied it; the others get it a moment later.
"""

import time
from collections.abc import Iterable

from interop.librdkafka import DEADLINE_S
from tailrace.client.blocking import Admin, NewTopic
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until


def make_topic(address: str, topic: NewTopic) -> None:
    """Make it, by this node. Its name is new: if it is said to be there, this was asked for twice, as in an election.

    A broker that the machine kept from running for a session is fenced, and too few are left for a while.
    """
    deadline = time.monotonic() + DEADLINE_S
    with Admin(address) as admin:
        while True:
            try:
                admin.create_topics([topic])
                return
            except KafkaError as fault:
                if fault.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                    return
                if fault.code is not ErrorCode.INVALID_REPLICATION_FACTOR or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)


def topics_of(cluster: Cluster, node: int) -> set[str]:
    """As this node has them."""
    with Admin(cluster.address(node)) as admin:
        return {topic.name for topic in admin.list_topics()}


def wait_until_known(cluster: Cluster, nodes: Iterable[int], names: set[str]) -> None:
    """Wait until each of the nodes has these topics."""
    for node in nodes:
        wait_until(lambda node=node: names <= topics_of(cluster, node), f"node {node} knows {names}")  # type: ignore[misc]
