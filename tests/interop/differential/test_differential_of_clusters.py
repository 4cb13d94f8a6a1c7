"""The same requests to clusters of Apache Kafka and of ours: their answers differ only where the list says so."""

from collections.abc import Iterator

import pytest

from interop.differential.apache import ApacheCluster
from interop.differential.catalogue.records.replicated import RACKS, SETTINGS, replicated
from interop.differential.comparison import Comparison, Runner
from interop.differential.differences import never_seen, unlisted
from interop.differential.listed_replicated import REPLICATED
from interop.kafka_tools import absent
from tailrace.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

_SHOWN = 30
_LEAST_STEPS, _LEAST_FIELDS = 700, 15_000


@pytest.fixture(scope="module")
def comparison() -> Iterator[Comparison]:
    """The script has run once on both."""
    if why := absent():
        pytest.skip(why)
    with (
        ApacheCluster(SETTINGS, racks=RACKS) as theirs,
        Cluster(brokers=len(RACKS), racks=RACKS, config=SETTINGS) as ours,
    ):
        addresses = [ours.address(node) for node in ours.broker_ids]
        runner = Runner(addresses, theirs.addresses, lambda found: not unlisted([found], REPLICATED))
        try:
            yield runner.run(replicated())
        finally:
            runner.close()


def test_answers_of_clusters_differ_only_where_the_list_says_so(comparison: Comparison) -> None:
    found = unlisted(comparison.findings, REPLICATED)
    assert not found, f"{len(found)} unlisted differences:\n" + "\n".join(map(str, found[:_SHOWN]))


def test_every_listed_difference_of_clusters_occurs(comparison: Comparison) -> None:
    assert never_seen(REPLICATED, comparison.findings) == []


def test_the_comparison_of_clusters_is_not_empty(comparison: Comparison) -> None:
    assert comparison.steps >= _LEAST_STEPS
    assert comparison.fields >= _LEAST_FIELDS
