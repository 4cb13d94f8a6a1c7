"""Whole KIP-848 conversations of our own consumers with Apache Kafka and with a node: the list has all differences.

Compared are the requests that the members send at each step, and what the coordinator answers: errors, assignments, and
the order of epochs.
"""

from collections.abc import Iterator

import pytest

from interop.differential.apache import ApacheKafka
from interop.differential.catalogue.whole import SETTINGS
from interop.differential.comparison import Comparison
from interop.differential.differences import never_seen, unlisted
from interop.differential.members.listed_members import MEMBERS
from interop.differential.members.member_conversations import KAFKA_SETTINGS, NODE_SETTINGS, converse
from interop.differential.members.member_records import MemberRecord, compared
from interop.kafka_tools import absent
from tailrace.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

_SHOWN = 30
_LEAST_STEPS, _LEAST_FIELDS = 75, 1_200


@pytest.fixture(scope="module")
def comparison() -> Iterator[Comparison]:
    """The conversations have taken place with both."""
    if why := absent():
        pytest.skip(why)
    settings = {**SETTINGS, **NODE_SETTINGS}
    with ApacheKafka({**settings, **KAFKA_SETTINGS}) as theirs, Cluster(config=settings) as ours:
        addresses = (ours.address(), theirs.address)
        records = tuple(MemberRecord(address) for address in addresses)
        for address, record in zip(addresses, records, strict=True):
            converse(address, record)
        yield compared(*(record.told() for record in records))


def test_conversations_of_members_differ_only_where_the_list_says_so(comparison: Comparison) -> None:
    found = unlisted(comparison.findings, MEMBERS)
    assert not found, f"{len(found)} unlisted differences:\n" + "\n".join(map(str, found[:_SHOWN]))


def test_every_listed_difference_of_members_occurs(comparison: Comparison) -> None:
    assert never_seen(MEMBERS, comparison.findings) == []


def test_the_comparison_of_members_is_not_empty(comparison: Comparison) -> None:
    assert comparison.steps >= _LEAST_STEPS
    assert comparison.fields >= _LEAST_FIELDS
