"""A topic for keyed consumers, the protocols of their groups, and pauses that are short."""

import pytest

from tailrace.client.keyed import outcomes
from tailrace.testing import Cluster
from unit.client.keyed.keyed_runs import RECORDS, write
from unit.client.new_topics import new_topic


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> str:
    """Records of ten keys in three partitions; the values of a key count up."""
    name = new_topic(tailrace_cluster, partitions=3)
    write(tailrace_cluster, name, RECORDS)
    return name


@pytest.fixture(params=["consumer", "classic"])
def group_protocol(request: pytest.FixtureRequest) -> str:
    """The protocol by which the members of a test join their group."""
    return str(request.param)


@pytest.fixture
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed key waits for a moment and not for a second."""
    monkeypatch.setattr(outcomes, "FIRST_PAUSE_MS", 1)
