import socket

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark import planning
from tailrace.spark.planning import Planner
from tailrace.spark.source_options import parse_source_options


def test_no_query_waits_long_for_a_cluster_that_shows_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark commits between two batches. This cluster accepts connections and does not answer."""
    monkeypatch.setattr(planning, "PROGRESS_TIMEOUT_MS", 100, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bootstrap = f"127.0.0.1:{silent.getsockname()[1]}"
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "flights", "kafka.group.id": "watchers"}
        planner = Planner(parse_source_options(options, streaming=True))
        with pytest.raises(KafkaError, match="group 'watchers' did not take its offsets within 100 ms") as fault:
            planner.show_progress("watchers", {TopicPartition("flights", 0): 3})
        planner.close()
    assert fault.value.code is ErrorCode.REQUEST_TIMED_OUT
