"""The pytest fixture `tailrace_cluster`. Every run of pytest loads this module: it imports nothing of the product."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tailrace.testing.cluster import Cluster


@pytest.fixture(scope="session")
def tailrace_cluster() -> "Iterator[Cluster]":
    """A cluster of one node for the whole run. Tests share the node: give topics and groups names of their own."""
    from tailrace.testing.cluster import Cluster

    with Cluster() as cluster:
        yield cluster
