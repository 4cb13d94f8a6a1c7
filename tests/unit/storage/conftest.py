"""A simulated disk for the logs."""

import pytest

from tailrace.testing.disk import SimulatedDisk


@pytest.fixture
def disk() -> SimulatedDisk:
    """A disk whose directory of logs survives a power cut."""
    return SimulatedDisk.with_directory("/data")
