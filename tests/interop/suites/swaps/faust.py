"""Faust: the fixture `broker_url`, which reads the address from the environment."""

import os

import pytest

from tailrace.testing import Cluster


@pytest.fixture(scope="session", autouse=True)
def swapped(tailrace_cluster: Cluster) -> None:
    os.environ["FAUST_TEST_BROKER"] = f"kafka://{tailrace_cluster.bootstrap_servers}"
