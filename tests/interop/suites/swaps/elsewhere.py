"""A broker that runs already in the place of the node, to compare both with the same tests."""

import os
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def tailrace_cluster() -> SimpleNamespace:
    return SimpleNamespace(bootstrap_servers=os.environ["NODE_ADDRESS"])
