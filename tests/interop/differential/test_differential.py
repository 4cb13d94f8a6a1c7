"""The same requests to Apache Kafka and to a node: their answers differ where the list says so, and nowhere else.

SEED=7 pytest tests/interop/differential     draws other requests; the fixed part of the script stays the same
"""

import os
from collections.abc import Iterator

import pytest

from interop.differential.apache import ApacheKafka
from interop.differential.catalogue.whole import SETTINGS, whole
from interop.differential.comparison import Comparison, Runner
from interop.differential.differences import never_seen, unlisted
from interop.differential.listed import DIFFERENCES
from interop.kafka_tools import absent
from tailrace.protocol.registry import CLIENT_APIS, OWN_APIS
from tailrace.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

SEED = int(os.environ.get("SEED", "1"))
_SHOWN = 30
_LEAST_STEPS = 3_000
_LEAST_FIELDS = 45_000


KAFKAS_PACE = {"group.consumer.heartbeat.interval.ms": "5000"}
"""A setting to which the development mode of a test cluster gives another value."""


@pytest.fixture(scope="module")
def comparison() -> Iterator[Comparison]:
    """The script has run once on both."""
    if why := absent():
        pytest.skip(why)
    with ApacheKafka(SETTINGS) as theirs, Cluster(config={**SETTINGS, **KAFKAS_PACE}) as ours:
        runner = Runner([ours.address()], [theirs.address], lambda found: not unlisted([found], DIFFERENCES))
        try:
            yield runner.run(whole(SEED))
        finally:
            runner.close()


def test_answers_differ_only_where_the_list_says_so(comparison: Comparison) -> None:
    found = unlisted(comparison.findings, DIFFERENCES)
    assert not found, f"SEED={SEED}: {len(found)} unlisted differences:\n" + "\n".join(map(str, found[:_SHOWN]))


def test_every_listed_difference_occurs(comparison: Comparison) -> None:
    assert never_seen(DIFFERENCES, comparison.findings) == []


def test_every_api_is_compared_in_its_first_and_last_version(comparison: Comparison) -> None:
    apis = [api for api in CLIENT_APIS.values() if api.key not in OWN_APIS]
    wanted = {(api.name, version) for api in apis for version in (api.min_version, api.max_version)}
    assert sorted(wanted - comparison.asked - _NOT_ANNOUNCED_BY_KAFKA) == []


_NOT_ANNOUNCED_BY_KAFKA = {("OffsetCommit", 10), ("OffsetFetch", 10), ("AddRaftVoter", 1), ("WriteTxnMarkers", 2)}


def test_the_comparison_is_not_empty(comparison: Comparison) -> None:
    assert comparison.steps >= _LEAST_STEPS
    assert comparison.fields >= _LEAST_FIELDS
