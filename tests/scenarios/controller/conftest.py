"""The cluster of tests of the controller."""

import pytest

from scenarios.controller.leadership_cluster import LeadershipCluster


@pytest.fixture
def cluster() -> LeadershipCluster:
    return LeadershipCluster()
