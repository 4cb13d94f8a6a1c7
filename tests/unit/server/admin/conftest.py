"""A node with a topic that has a setting of its own."""

import pytest

from tailrace.metadata.commands import TopicSpec
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath
from testkit.quorum.controller_commands import create_topics


@pytest.fixture
def node() -> AdminPath:
    settings = {"log.retention.hours": "2", "log.segment.bytes": "1000000", "num.partitions": "3"}
    node = AdminPath("/data", files=SimulatedDisk(), settings=settings)
    node.submit(create_topics(TopicSpec(name="orders", configs=(("segment.bytes", "5000"),))))
    node.end_turn()
    return node
