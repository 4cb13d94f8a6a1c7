"""A disk for the partitions of a node."""

import pytest

from tailrace.testing.disk import SimulatedDisk


@pytest.fixture
def files() -> SimulatedDisk:
    return SimulatedDisk()
