"""Topics for the tests of clients."""

from typing import Any
from uuid import uuid4

from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.testing import Cluster


def new_topic(cluster: Cluster, *values: bytes, partitions: int = 1, **options: Any) -> str:
    """A topic with records of these values in its first partition."""
    name = f"topic-{uuid4()}"
    with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers) as producer:
        admin.create_topics([NewTopic(name=name, partitions=partitions, **options)])
        for value in values:
            producer.send(name, value, partition=0)
    return name
