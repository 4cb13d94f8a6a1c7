"""The choice of a replica as the leader makes it. The rules of KIP-392: tests/scenarios/fetch/test_kip_392_*."""

import asyncio
import logging
from typing import Any

import pytest

from tailrace.metadata.image import Endpoint
from tailrace.model.partitions import TopicPartition
from tailrace.replication.replica_selector import (
    ClientMetadata,
    LeaderSelector,
    PartitionView,
    ReplicaSelector,
    ReplicaView,
)
from testkit.nodes.ports import RecordingConnection
from testkit.nodes.replica_reads import LeadingBroker


class ScriptedSelector(ReplicaSelector):
    """Returns, or raises, `result`; a function is called with the view. Keeps its arguments."""

    def __init__(self, result: Any = None) -> None:
        self.result = result
        self.calls: list[tuple[TopicPartition, ClientMetadata, PartitionView]] = []

    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView, /
    ) -> ReplicaView | None:
        self.calls.append((topic_partition, client, partition))
        if isinstance(self.result, BaseException):
            raise self.result
        if callable(self.result):
            return self.result(partition)  # type: ignore[no-any-return]
        return self.result  # type: ignore[no-any-return]


def broker_of(number: int) -> Any:
    return lambda view: next(replica for replica in view.replicas if replica.endpoint.id == number)


def choices_of(bench: LeadingBroker) -> tuple[int, int]:
    """Redirects and failures."""
    return bench.node.broker.choices.redirects, bench.node.broker.choices.failures


def test_a_replica_selector_gets_the_views_of_kip_392() -> None:
    selector = ScriptedSelector()
    bench = LeadingBroker(selector=selector)
    bench.commit(b"a", b"b")
    bench.produce(b"c")
    bench.clock.advance(250)
    bench.follow(2, 2, high_watermark=2)
    bench.consume(1, rack="b", connection=RecordingConnection(principal="User:ANONYMOUS"))
    ((topic_partition, client, view),) = selector.calls
    assert topic_partition == ("orders", 0)
    assert client == ("b", "test", "127.0.0.1", "User:ANONYMOUS", "PLAINTEXT")
    first, two, three = sorted(view.replicas, key=lambda each: each.endpoint.id)
    assert first is view.leader
    assert first == ((1, "127.0.0.1", 9001, "a"), 3, 0)
    assert two == ((2, "127.0.0.1", 9002, "b"), 2, 250)
    assert three == ((3, "127.0.0.1", 9003, "c"), 2, 250)


def test_a_selector_of_users_runs_without_a_rack_too() -> None:
    bench = LeadingBroker(selector=ScriptedSelector(broker_of(3)))
    bench.commit(b"a")
    assert bench.preferred(0, "") == 3
    assert choices_of(bench) == (1, 0)


@pytest.mark.parametrize("result", [None, broker_of(1)], ids=["none", "the leader"])
def test_a_consumer_stays_at_the_leader_if_the_replica_selector_says_so(result: Any) -> None:
    bench = LeadingBroker(selector=ScriptedSelector(result))
    bench.commit(b"a")
    answer = bench.consume(0, rack="b").fetched
    assert (answer.preferred_read_replica, len(answer.records or b"") > 0) == (-1, True)
    assert choices_of(bench) == (0, 0)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class NotComparable:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "result",
    [
        RuntimeError("no idea\nevent=forged"),
        AssertionError("not my fault"),
        Unprintable(),
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        2,
        "broker 2",
        NotComparable(),
        lambda view: broker_of(2)(view)._replace(log_end_offset=77),
        lambda view: broker_of(2)(view).endpoint,
        lambda view: view,
    ],
    ids=[
        "raises",
        "asserts",
        "unprintable",
        "exits",
        "interrupts",
        "is cancelled",
        "an id",
        "text",
        "garbage",
        "an altered view",
        "a node",
        "the whole view",
    ],
)
def test_a_consumer_reads_from_the_leader_whatever_the_selector_does(
    result: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = LeadingBroker(selector=ScriptedSelector(result))
    bench.commit(b"a")
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            answer = bench.consume(0, rack="b").fetched
            assert (answer.error_code, answer.preferred_read_replica) == (0, -1)
            assert answer.records
    assert choices_of(bench) == (0, 100)
    lines = [record.getMessage() for record in caplog.records if "replica-selector-failed" in record.getMessage()]
    assert len(lines) == 10, "a line for each would fill the disk"
    assert all("\n" not in line and len(line) < 500 for line in lines)


def test_a_replica_selector_cannot_change_its_view() -> None:
    def tamper(view: PartitionView) -> ReplicaView:
        view.replicas.add(1)  # type: ignore[attr-defined]
        raise AssertionError

    bench = LeadingBroker(selector=ScriptedSelector(tamper))
    bench.commit(b"a")
    assert bench.preferred(0, "b") == -1
    assert choices_of(bench) == (0, 1)


def test_without_a_candidate_the_selector_is_not_asked() -> None:
    selector = ScriptedSelector(RuntimeError("asked"))
    bench = LeadingBroker(selector=selector)
    bench.produce(b"a")
    assert bench.preferred(0, "b") == -1
    assert selector.calls == []


def test_the_leader_selector_costs_no_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaderSelector, "select", None)
    bench = LeadingBroker(selector_class="LeaderSelector")
    bench.commit(b"a")
    assert bench.preferred(0, "b") == -1
    assert choices_of(bench) == (0, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"fenced": True},
        {"in_controlled_shutdown": True},
        {"endpoints": ()},
        {"endpoints": (Endpoint(listener_name="INTERNAL", host="127.0.0.1", port=9),)},
    ],
    ids=["fenced", "stopping", "no listener", "another listener"],
)
def test_a_replica_that_the_consumer_cannot_reach_is_no_candidate(changes: dict[str, Any]) -> None:
    bench = LeadingBroker()
    bench.commit(b"a")
    assert bench.preferred(0, "b") == 2
    bench.change_broker(2, **changes)
    assert bench.preferred(0, "b") == -1


def test_a_leader_that_the_consumers_listener_does_not_have_is_not_in_the_view() -> None:
    selector = ScriptedSelector(broker_of(2))
    bench = LeadingBroker(selector=selector)
    bench.commit(b"a")
    bench.change_broker(1, endpoints=())
    assert bench.preferred(0, "b") == 2
    view = selector.calls[-1][2]
    assert (view.leader, len(view.replicas)) == (None, 2)
