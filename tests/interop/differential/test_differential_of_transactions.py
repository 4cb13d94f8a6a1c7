"""Whole conversations of transactional producers with Apache Kafka and with a node: the list has all differences.

SEED=7 pytest tests/interop/differential     draws other conversations
"""

import os
from collections.abc import Iterator
from itertools import chain

import pytest

from benchmarks.peers.peer import free_addresses
from interop.differential.apache import ApacheKafka
from interop.differential.catalogue.transactions import silent_broker
from interop.differential.catalogue.transactions.conversations import conversations
from interop.differential.catalogue.transactions.unfinished_ends import unfinished_ends
from interop.differential.catalogue.whole import SETTINGS
from interop.differential.comparison import Comparison, Runner
from interop.differential.differences import never_seen, unlisted
from interop.differential.listed_transactions import TRANSACTIONS
from interop.kafka_tools import absent
from tailrace.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

SEED = int(os.environ.get("SEED", "1"))
_SHOWN = 30
_LEAST_STEPS, _LEAST_FIELDS = 1_000, 10_000


@pytest.fixture(scope="module")
def comparison() -> Iterator[Comparison]:
    """The script has run once on both."""
    if why := absent():
        pytest.skip(why)
    settings = {**SETTINGS, **silent_broker.SETTINGS}
    address, controller = free_addresses(2)
    own = {
        "log.durability": "page-cache",  # as Kafka's: 100,000 epochs are used up
        "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@{controller}",
    }
    with ApacheKafka(settings) as theirs, Cluster(config={**settings, **own}):
        runner = Runner(
            [address],
            [theirs.address],
            lambda found: not unlisted([found], TRANSACTIONS),
            controllers=(controller, theirs.controller),
        )
        try:
            yield runner.run(chain(conversations(SEED), unfinished_ends()))
        finally:
            runner.close()


def test_conversations_differ_only_where_the_list_says_so(comparison: Comparison) -> None:
    found = unlisted(comparison.findings, TRANSACTIONS)
    assert not found, f"SEED={SEED}: {len(found)} unlisted differences:\n" + "\n".join(map(str, found[:_SHOWN]))


def test_every_listed_difference_of_conversations_occurs(comparison: Comparison) -> None:
    assert never_seen(TRANSACTIONS, comparison.findings) == []


def test_the_comparison_of_conversations_is_not_empty(comparison: Comparison) -> None:
    assert comparison.steps >= _LEAST_STEPS
    assert comparison.fields >= _LEAST_FIELDS
