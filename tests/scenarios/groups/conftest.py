"""Fixtures of tests of groups."""

import pytest

from scenarios.groups.consumer_group_nodes import new_node
from testkit.coordinators.group_path import GroupPath


@pytest.fixture
def node() -> GroupPath:
    return new_node()
