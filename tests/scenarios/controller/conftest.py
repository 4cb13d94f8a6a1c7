"""The cluster of tests of the controller."""

import pytest

from scenarios.controller.leadership_cluster import LeadershipCluster

pytest.register_assert_rewrite("scenarios.controller.decision_table")


@pytest.fixture
def cluster() -> LeadershipCluster:
    return LeadershipCluster()
