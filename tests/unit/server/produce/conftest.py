"""A node with the topic `orders`, whose disk works when the test says so."""

import pytest

from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath
from testkit.nodes.ports import DeferredDisk


@pytest.fixture
def disk() -> DeferredDisk:
    return DeferredDisk()


@pytest.fixture
def node(disk: DeferredDisk) -> DataPath:
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create()
    return node
