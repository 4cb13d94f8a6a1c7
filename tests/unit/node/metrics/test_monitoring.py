"""The metrics page of a running node, and its cost when a client reads nothing."""

import asyncio
import re
import socket
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace.client.blocking import Admin, Consumer, Producer, RangedFetch, Rectangle
from tailrace.metadata.feature_levels import METADATA_VERSION
from tailrace.model.errors import KafkaError
from tailrace.model.key_ranges import HASH_SPACE
from tailrace.model.partitions import TopicPartition
from tailrace.node.broker import RunningBroker
from tailrace.node.node import Node
from tailrace.node.settings.config import NodeConfig
from tailrace.protocol.headers import encode_request
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.testing import Cluster

MIB = 1 << 20
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {
        "metrics.listener": "127.0.0.1:0",
        "connections.max.stall.ms": "1500",
        "message.max.bytes": str(2 * MIB),
    }
    with Cluster(config=settings, directory=tmp_path_factory.mktemp("monitored")) as running:
        yield running


def address_of_metrics(cluster: Cluster, node: int = 1) -> str:
    found = re.findall(r"event=metrics-served address=(\S+)", cluster.log_text(node))
    return str(found[-1])


def page(cluster: Cluster, path: str, node: int = 1) -> str:
    with urllib.request.urlopen(f"http://{address_of_metrics(cluster, node)}{path}", timeout=20) as answer:
        return str(answer.read().decode())


def scrape(cluster: Cluster, node: int = 1) -> Samples:
    families = text_string_to_metric_families(page(cluster, "/metrics", node))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_healthz_of_a_healthy_node_is_ok(cluster: Cluster) -> None:
    assert page(cluster, "/healthz") == "ok\n"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        page(cluster, "/")


def test_no_answer_comes_after_the_signal_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load balancer that asks for health sends no clients to a node that hands over its partitions."""
    answered: list[bool] = []

    async def hand_over(broker: RunningBroker, *, is_needed: bool) -> None:
        try:
            assert node.metrics_address is not None
            _, writer = await asyncio.open_connection(*node.metrics_address)
        except OSError:
            answered.append(False)
        else:
            answered.append(True)
            writer.close()
        await handed_over(broker, is_needed=is_needed)

    async def live() -> None:
        await node.start()
        await node.stop()

    handed_over = RunningBroker.hand_over
    monkeypatch.setattr(RunningBroker, "hand_over", hand_over)
    settings = {"log.dirs": str(tmp_path), "listeners": "127.0.0.1:0", "metrics.listener": "127.0.0.1:0"}
    node = Node(NodeConfig(settings), on_fatal=lambda error: pytest.fail(str(error)))
    asyncio.run(live())
    assert answered == [False]


def test_the_progress_of_groups_by_ranges_is_shown(cluster: Cluster) -> None:
    """KIP-X: the stable offset, the records done beyond it, the ranges they take, and for how long it has not moved."""
    partition, half = TopicPartition("in-ranges", 0), HASH_SPACE // 2
    with Producer(cluster.bootstrap_servers) as producer:
        for _ in range(20):
            producer.send(partition.topic, b"value", partition=0)
        producer.flush()
    with Consumer(cluster.bootstrap_servers, group="sharers") as consumer:
        consumer.commit(ranges={partition: [Rectangle(0, 9, 0, half - 1), Rectangle(0, 1, half, HASH_SPACE - 1)]})
    found, labels = scrape(cluster), {"group": "sharers", "topic": partition.topic, "partition": "0"}
    assert value(found, "tailrace_group_stable_offset", **labels) == 2
    assert value(found, "tailrace_group_ahead", **labels) == 4
    assert value(found, "tailrace_group_ranges", **labels) == 1
    assert value(found, "tailrace_group_oldest_gap_seconds", **labels) >= 0
    assert value(found, "tailrace_group_ranges_limit") == 4096
    assert value(found, "tailrace_group_range_cuts_total") == 0


def lag_of(cluster: Cluster, group: str, topic: str, expected: int) -> float:
    """The lag of the group in this topic, when it is as expected or has stayed another number for long.

    The records of a view are counted in steps: after the first steps the metric is an estimate.
    """
    deadline = time.monotonic() + 30
    while True:
        lag = value(scrape(cluster), "tailrace_group_lag", group=group, topic=topic)
        if lag == expected or time.monotonic() > deadline:
            return lag


def test_the_lag_of_a_group_counts_each_record_once(cluster: Cluster) -> None:
    """In a view too, whose partitions have the offsets of all slots; without what is done beyond the offset."""
    name, count = "in-lags", 640
    view, half = f"{name}.shared-64", HASH_SPACE // 2
    keys = [b"key-%d" % number for number in range(count)]
    with Producer(cluster.bootstrap_servers) as producer:
        for key in keys:
            producer.send(name, b"value", key=key, partition=0)
        producer.flush()
    with Consumer(cluster.bootstrap_servers, group="viewers") as consumer:
        consumer.commit({TopicPartition(view, number): 100 for number in range(64)})
    with Consumer(cluster.bootstrap_servers, group="handlers") as consumer:
        consumer.commit(ranges={TopicPartition(name, 0): [Rectangle(0, 399, 0, half - 1)]})
    lag = partial(lag_of, cluster)
    assert lag("viewers", view, count - 100) == count - 100
    assert lag("handlers", name, count - 200) == count - 200
    with Consumer(cluster.bootstrap_servers, group="viewers") as consumer:
        consumer.commit({TopicPartition(view, number): count for number in range(64)})
    assert lag("viewers", view, 0) == 0


def test_the_work_of_views_is_counted(cluster: Cluster) -> None:
    name, count = "in-views", 64
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(count):
            producer.send(name, bytes(100), key=b"key-%d" % number, partition=0)
        producer.flush()
    metric, before = "tailrace_key_filter", scrape(cluster)
    read = 0
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(f"{name}.shared-2", number) for number in range(2)])
        while read < count:
            read += len(consumer.poll(5))
    after = scrape(cluster)
    for each in ("scanned", "delivered"):
        full = f"{metric}_{each}_bytes_total"
        assert value(after, full, reader="views") - value(before, full, reader="views") > count * 100
        assert value(after, full, reader="ranges") == value(before, full, reader="ranges")
    assert value(after, f"{metric}_unavailable_total", reader="views") >= 0
    for reason in ("room", "unread"):
        assert value(after, f"{metric}_parts_evicted_total", reason=reason) == 0
        assert value(after, f"{metric}_parts_evicted_bytes_total", reason=reason) == 0
    assert value(after, f"{metric}_parts") >= 0
    assert value(after, f"{metric}_parts_bytes") >= 0
    assert value(after, "tailrace_key_index_waiting_partitions") == 0
    assert value(after, "tailrace_key_index_left_bytes") == 0


def test_fetch_sessions_are_counted_under_kafkas_names(cluster: Cluster) -> None:
    """KIP-227, 'New Metrics': sessions, their partitions, evictions."""
    name = "kafka_server_fetchsessioncache"
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics({"in-sessions": 3})
    before = scrape(cluster)
    with Consumer(cluster.bootstrap_servers) as consumer:
        consumer.assign([TopicPartition("in-sessions", number) for number in range(3)])
        consumer.poll(0.01)
        while value(scrape(cluster), f"{name}_numincrementalfetchsessions") == value(
            before, f"{name}_numincrementalfetchsessions"
        ):
            consumer.poll(0.1)
        during = scrape(cluster)
    partitions = f"{name}_numincrementalfetchpartitionscached"
    assert value(during, partitions) == value(before, partitions) + 3
    assert value(during, f"{name}_incrementalfetchsessionevictions_total") == 0


def test_records_and_bytes_in_and_out_are_counted(cluster: Cluster) -> None:
    topic = "counted"
    before = scrape(cluster)
    with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers, linger_ms=0) as producer:
        admin.create_topics({topic: 2})
        for number in range(100):
            producer.send(topic, b"%d" % number, partition=0)
        producer.flush()
        with pytest.raises(KafkaError):
            admin.create_topics({topic: 2})
    with RangedFetch(cluster.bootstrap_servers) as reader:
        size = sum(len(chunk) for chunks in reader.fetch_range(TopicPartition(topic, 0), 0, 100) for chunk in chunks)
    after = scrape(cluster)
    name = "kafka_server_brokertopicmetrics"
    assert value(after, f"{name}_messagesin_total", topic=topic) == 100
    assert value(after, f"{name}_bytesin_total", topic=topic) == size
    assert value(after, f"{name}_bytesout_total", topic=topic) >= size
    assert value(after, "tailrace_consumer_bytesout_total", role="leader") >= size
    assert value(after, "tailrace_consumer_bytesout_total", role="follower") == 0
    assert value(after, f"{name}_replicationbytesout_total") == 0
    assert value(after, "tailrace_preferred_read_replica_answers_total") == 0
    assert value(after, "tailrace_replica_selector_failures_total") == 0
    assert (
        value(after, f"{name}_messagesin_total", topic="") >= value(before, f"{name}_messagesin_total", topic="") + 100
    )
    partition = {"topic": topic, "partition": "0"}
    assert value(after, "kafka_log_log_logendoffset", **partition) == 100
    assert value(after, "kafka_log_log_logstartoffset", **partition) == 0
    assert value(after, "kafka_log_log_size", **partition) == size
    assert value(after, "kafka_cluster_partition_laststableoffsetlag", **partition) == 0
    assert value(after, "kafka_server_replicamanager_produceridcount") >= 1, "our producer is idempotent"
    assert value(after, "kafka_server_replicamanager_partitionswithlatetransactionscount") == 0
    errors = "kafka_network_requestmetrics_errors_total"
    assert value(after, errors, request="CreateTopics", error="TOPIC_ALREADY_EXISTS") == 1
    requests = [
        count
        for (name, labels), count in after.items()
        if name == "kafka_network_requestmetrics_requests_total" and ("request", "Produce") in labels
    ]
    assert sum(requests) >= 1
    assert value(after, "kafka_server_replicamanager_leadercount") >= 2
    assert value(after, "tailrace_flush_round_seconds_count") > value(before, "tailrace_flush_round_seconds_count")
    assert value(after, "process_open_fds") > 0


def test_counts_do_not_fall_when_a_topic_is_deleted(cluster: Cluster) -> None:
    total = "kafka_server_brokertopicmetrics_messagesin_total"
    with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers, linger_ms=0) as producer:
        admin.create_topics({"deleted": 1})
        producer.send("deleted", b"x")
        producer.flush()
        before = scrape(cluster)
        admin.delete_topics(["deleted"])
    after = scrape(cluster)
    assert (total, frozenset({("topic", "deleted")})) not in after
    assert value(after, total, topic="") >= value(before, total, topic="")


def test_a_client_that_asks_for_much_and_reads_nothing_costs_little_and_is_cut_off(cluster: Cluster) -> None:
    """100 fetches of 1 MiB: the node holds a few answers and its sockets' buffers, and closes after the stall time."""
    topic = "large"
    with (
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers, max_request_size=2 * MIB) as producer,
    ):
        admin.create_topics({topic: 1})
        for _ in range(3):
            producer.send(topic, bytes(MIB - 1000), partition=0)
            producer.flush()
    resident = resident_bytes(cluster.process_id())
    host, port = cluster.bootstrap_servers.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as greedy:
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            topics=(
                FetchTopic(
                    topic=topic, partitions=(FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MIB),)
                ),
            ),
        )
        for number in range(100):
            body = b"".join(encode_request(request, 11, number, "greedy"))
            greedy.sendall(struct.pack(">i", len(body)) + body)
        largest = 0
        deadline = time.monotonic() + 20
        while "answers were not taken for 1500 ms" not in cluster.log_text():
            assert time.monotonic() < deadline, cluster.log_text()
            largest = max(largest, resident_bytes(cluster.process_id()))
            time.sleep(0.02)
    assert largest - resident < 48 * MIB
    assert page(cluster, "/healthz") == "ok\n"


def resident_bytes(process_id: int) -> int:
    status = Path(f"/proc/{process_id}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@pytest.fixture(scope="module")
def often(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Snapshots of its metadata as often as that."""
    settings = {
        "metrics.listener": "127.0.0.1:0",
        "metadata.log.max.record.bytes.between.snapshots": "2000",
        "metadata.snapshot.min.changed_records.ratio": "0",
    }
    with Cluster(config=settings, directory=tmp_path_factory.mktemp("often")) as running:
        yield running


def test_metrics_of_the_quorum_have_kafkas_names(cluster: Cluster) -> None:
    found = scrape(cluster)
    raft = "kafka_server_raft_metrics"
    assert value(found, f"{raft}_current_state", state="leader") == 1
    assert value(found, f"{raft}_current_state", state="follower") == 0
    assert value(found, f"{raft}_current_leader") == value(found, f"{raft}_current_vote") >= 0
    assert value(found, f"{raft}_current_epoch") == value(found, f"{raft}_log_end_epoch") >= 1
    assert value(found, f"{raft}_number_of_voters") == 1
    assert 0 < value(found, f"{raft}_high_watermark") <= value(found, f"{raft}_log_end_offset")
    assert value(found, "kafka_server_metadataloader_currentmetadataversion") == METADATA_VERSION
    assert value(found, "tailrace_metadata_log_failed") == 0


def test_a_node_that_is_only_a_controller_has_the_same_pages() -> None:
    """Without the metrics that only a broker has: KIP-595 and KIP-630 name the metrics of controllers."""
    broker, controller = 1, 2
    settings = {
        "metrics.listener": "127.0.0.1:0",
        "metadata.log.max.record.bytes.between.snapshots": "2000",
        "metadata.snapshot.min.changed_records.ratio": "0",
    }
    with Cluster(brokers=1, controllers=1, config=settings) as cluster:
        assert page(cluster, "/healthz", controller) == "ok\n"
        deadline = time.monotonic() + 30
        number, found = 0, scrape(cluster, controller)
        generated = "kafka_controller_kafkacontroller_gensnapshotlatencyms_count"
        with Admin(cluster.bootstrap_servers) as admin:
            while value(found, generated) == 0:
                assert time.monotonic() < deadline, cluster.log_text(controller)
                admin.create_topics({f"topic-{number}": 3})
                number += 1
                found = scrape(cluster, controller)
        of_broker = scrape(cluster, broker)
    raft = "kafka_server_raft_metrics"
    assert value(found, f"{raft}_current_state", state="leader") == 1
    assert value(of_broker, f"{raft}_current_state", state="observer") == 1
    assert value(found, f"{raft}_current_leader") == value(of_broker, f"{raft}_current_leader") == controller
    assert value(found, f"{raft}_number_of_voters") == 1
    assert 0 < value(found, f"{raft}_high_watermark") <= value(found, f"{raft}_log_end_offset")
    name = "kafka_controller_kafkacontroller"
    assert value(found, f"{name}_activecontrollercount") == 1
    assert value(of_broker, f"{name}_activecontrollercount") == 0
    assert value(found, f"{name}_activebrokercount") == 1
    assert value(found, f"{name}_globaltopiccount") == number
    assert value(found, f"{name}_snapshotsizebytes") > 500
    asked = {dict(labels)["request"] for metric, labels in found if metric.endswith("requestmetrics_requests_total")}
    assert {"Fetch", "BrokerRegistration", "BrokerHeartbeat", "Envelope"} <= asked
    assert value(found, "kafka_server_socketservermetrics_connection_count", listener="CONTROLLER") >= 1
    assert value(found, "tailrace_metadata_flush_round_seconds_count") >= number
    only_brokers = ("kafka_server_brokertopicmetrics", "kafka_server_replicamanager", "kafka_log_log")
    assert not [metric for metric, _ in found if metric.startswith((*only_brokers, "kafka_coordinator"))]
    without_samples_at_first = {"kafka_network_requestmetrics_errors_total"}
    assert {metric for metric, _ in found} - without_samples_at_first < {metric for metric, _ in of_broker}


def test_metrics_of_snapshots_have_the_names_of_kip_630(often: Cluster) -> None:
    name = "kafka_controller_kafkacontroller"
    deadline = time.monotonic() + 30
    with Admin(often.bootstrap_servers) as admin:
        found = scrape(often)
        number = 0
        while value(found, f"{name}_gensnapshotlatencyms_count") == 0:
            assert time.monotonic() < deadline, often.log_text()
            admin.create_topics({f"topic-{number}": 3})
            number += 1
            found = scrape(often)
    assert value(found, f"{name}_gensnapshotlatencyms_bucket", le="+Inf") >= 1
    assert value(found, f"{name}_gensnapshotlatencyms_sum") >= 0
    assert value(found, f"{name}_snapshotsizebytes") > 500
    high_watermark = value(found, "kafka_server_raft_metrics_high_watermark")
    assert 0 <= value(found, f"{name}_snapshotlag") < high_watermark
    assert value(found, f"{name}_lastcommittedrecordoffset") == high_watermark - 1
    assert value(found, f"{name}_loadsnapshotlatencyms_count") == 0
    often.restart()
    again = scrape(often)
    assert value(again, f"{name}_loadsnapshotlatencyms_count") == 1
    assert value(again, "kafka_server_metadataloader_handleloadsnapshotcount") == 1
