"""Fixtures of tests of groups: a coordinator on a table, and a node with a coordinator."""

import pytest

from scenarios.groups.consumer_group_nodes import new_node
from testkit.coordinators.group_coordinator import GroupScene
from testkit.coordinators.group_path import GroupPath


@pytest.fixture
def scene() -> GroupScene:
    return GroupScene()


@pytest.fixture
def node() -> GroupPath:
    return new_node()
