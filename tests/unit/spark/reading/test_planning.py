import socket
from collections.abc import Mapping

import pytest

from tailrace.client.blocking import Admin
from tailrace.client.offsets import OffsetAt
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark.reading import planning
from tailrace.spark.reading.planning import Planner
from tailrace.spark.reading.source_options import parse_source_options


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


def test_a_record_that_comes_while_a_time_is_looked_up_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record comes behind the lookup by time, which finds no record, and before the end is asked for."""
    early, late = TopicPartition("flights", 0), TopicPartition("flights", 1)
    log = {early: [100, 100], late: [100]}

    def list_offsets(admin: Admin, specs: Mapping[TopicPartition, int], **_: object) -> dict[TopicPartition, OffsetAt]:
        def offset(tp: TopicPartition, spec: int) -> int:
            times = log[tp]
            return len(times) if spec == -1 else next((at for at, time in enumerate(times) if time >= spec), -1)

        answer = {tp: OffsetAt(offset(tp, spec), -1, -1) for tp, spec in specs.items()}
        if len(log[early]) == 2:
            log[early].append(200)
        return answer

    monkeypatch.setattr(Admin, "list_offsets", list_offsets)
    options = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "flights", "startingTimestamp": "150"}
    options["startingOffsetsByTimestampStrategy"] = "latest"
    parsed = parse_source_options(options, streaming=True)
    planner = Planner(parsed)
    assert planner.resolve(parsed.starting, [early, late], is_start=True) == {early: 2, late: 1}
    planner.close()
