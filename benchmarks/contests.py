"""Comparisons of servers: only servers with equal promises about acknowledged records are compared."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from benchmarks.downloads.kafka_jars import CONNECTOR_JARS, absent, connector_absent
from benchmarks.peers.clusters import PeerCluster, kafka_cluster, tailrace_cluster
from benchmarks.peers.kafka import KAFKA, apache_kafka, flushed_by_message
from benchmarks.peers.peer import MOCK, TAILRACE, Peer, mock_cluster, running, tailrace
from benchmarks.results.rounds import Rounds

CONNECTOR = "Spark's connector"
DURABILITIES = ("page-cache", "flushed")
PAGE_CACHE = "Page-cache: no answer waits for a sync (Kafka's default; `log.durability=page-cache` here)."
FLUSHED = "Flushed: nothing is acknowledged before it is synced (Kafka: `flush.messages=1`; the default here)."


def page_cache_and_flushed(rounds: Rounds, stack: ExitStack, *, mock: bool = False) -> dict[str, list[Peer]]:
    """The servers by durability, which run while the stack is open. One process of Kafka serves both durabilities: the
    flush is a setting of the topic."""
    page_cache, flushed = (stack.enter_context(running(tailrace(durability))) for durability in DURABILITIES)
    kafka = rounds.enter(stack, KAFKA, running(apache_kafka()))
    mocks = rounds.enter(stack, MOCK, mock_cluster()) if mock else []
    return {"page-cache": [page_cache, *kafka, *mocks], "flushed": [flushed, *map(flushed_by_message, kafka)]}


def clusters_of_both(
    rounds: Rounds,
    durability: str,
    ours: Mapping[str, str] | None = None,
    theirs: Mapping[str, str] | None = None,
) -> dict[str, Callable[[], AbstractContextManager[PeerCluster]]]:
    """Functions by name that start a cluster of Tailrace or of Kafka with these settings."""
    clusters: dict[str, Callable[[], AbstractContextManager[PeerCluster]]] = {
        TAILRACE: lambda: tailrace_cluster(durability, ours)
    }
    if why := absent():
        rounds.miss(KAFKA, why)
    else:
        clusters[KAFKA] = lambda: kafka_cluster(theirs)
    return clusters


def connector_jars(rounds: Rounds) -> list[Path]:
    """The jars of Spark's connector; none without the connector, and the reason is noted."""
    if why := connector_absent():
        rounds.miss(CONNECTOR, why)
        return []
    return sorted(CONNECTOR_JARS.glob("*.jar"))
