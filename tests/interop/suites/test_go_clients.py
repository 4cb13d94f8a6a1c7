"""franz-go and kafka-go: tests that Tailrace did not pass once, large requests, and the release by its APIs."""

import pytest

from benchmarks.downloads import franz_go
from benchmarks.downloads.franz_go import absent as producer_absent
from interop.suites import version_guess
from interop.suites.go_modules import FRANZ_GO, KAFKA_GO, franz_go_absent, kafka_go_absent, run_test
from tailrace.client.blocking import Admin
from tailrace.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TIMEOUT_S = 240


def test_franz_go_moves_records_from_topic_to_topic_in_transactions(tailrace_cluster: Cluster) -> None:
    """Consumers of both group protocols come and go, and abort right behind a commit (KIP-890).

    Six chains of groups copy from topic to topic. With a tenth of the records aborts are too few to find a coordinator
    that refuses aborts.
    """
    if why := franz_go_absent():
        pytest.skip(why)
    address = tailrace_cluster.bootstrap_servers
    settings = {"KGO_SEEDS": address, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "50000", "KGO_LOG_LEVEL": "none"}
    run_test(FRANZ_GO, address, settings, timeout_s=TIMEOUT_S)


def test_kafka_go_reads_a_topic_while_it_is_compacted() -> None:
    """The client reads again until one record per key is left: most segments, of 200 bytes, have no record then."""
    if why := kafka_go_absent():
        pytest.skip(why)
    cleaner = {"log.cleaner.backoff.ms": "100", "log.cleaner.min.cleanable.ratio": "0.01"}
    with Cluster(config=cleaner) as cluster:
        run_test(KAFKA_GO, cluster.bootstrap_servers, {}, timeout_s=TIMEOUT_S)


def test_franz_gos_default_producer_fills_its_requests_and_none_is_refused() -> None:
    """9,000 records of 10 KB over 40 partitions go in requests of up to 40 MB: the client fills one up to 100 MiB."""
    if why := producer_absent():
        pytest.skip(why)
    with Cluster() as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics({"large": 40})
        rounds = franz_go.produce(
            cluster.bootstrap_servers, "large", partitions=40, records=9_000, size=10_000, rounds=2
        )
        assert [(done.acked, done.is_troubled) for done in rounds] == [(9_000, False), (9_000, False)], rounds
        assert max(done.largest_bytes for done in rounds) > 16 << 20
        assert "connection-closed" not in cluster.log_text()


def test_franz_go_takes_a_node_for_a_release_of_today(tailrace_cluster: Cluster) -> None:
    """kcl and kminion show the guess, and kcl refuses commands by it; one missing API makes a release of years ago."""
    if why := version_guess.absent():
        pytest.skip(why)
    assert version_guess.guess(tailrace_cluster.bootstrap_servers) == "at least v3.9"
