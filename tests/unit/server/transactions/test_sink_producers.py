"""Members of sinks over time: timeouts, runs that follow, and producer ids that are used again."""

import pytest

from tailrace.protocol.messages.sinks import (
    CommitSinkResponse,
    DescribeSinksRequest,
    RenewSinkRunRequest,
    RenewSinkRunResponse,
)
from tailrace.server.transactions import sink_memory
from testkit.coordinators.sink_path import SinkWriter, identity
from testkit.coordinators.transaction_path import TransactionPath
from unit.server.transactions.sink_nodes import E, open_names, sink_node, versions, writing


def test_a_sinks_member_times_out_before_the_decision() -> None:
    node, writer = writing()
    member = writer.write(0, b"one")
    node.clock.advance(75_000)
    assert open_names(node) == []
    assert writer.commit(0, member).error_code == E.INVALID_PRODUCER_ID_MAPPING
    assert node.committed_values("orders") == []


def _sign(node: TransactionPath, run: str, lease_ms: int = 10_000) -> RenewSinkRunResponse:
    answer = node.send(RenewSinkRunRequest(sink_id="copy", run=run, lease_ms=lease_ms), 0).response
    assert isinstance(answer, RenewSinkRunResponse)
    return answer


def test_a_sinks_run_that_gives_no_more_signs_of_life_holds_no_reader_up() -> None:
    node = sink_node()
    writer, silent = SinkWriter(node, "r1"), SinkWriter(node, "r2")
    members = [writer.write(0, b"one"), writer.write(0, b"two", task=1)]
    other = silent.write(0, b"other")
    assert _sign(node, "r1") == RenewSinkRunResponse(last_batch=-1)
    for _ in range(3):
        node.clock.advance(9_000)
        assert _sign(node, "r1").error_code == E.NONE
    assert len(open_names(node)) == 3
    node.clock.advance(31_000)
    assert open_names(node) == [other.transactional_id], "a run that has promised nothing has its timeout"
    assert writer.commit(0, *members).error_code == E.INVALID_PRODUCER_ID_MAPPING
    assert node.committed_values("orders") == []
    assert silent.commit(0, other).error_code == E.NONE
    assert _sign(node, "r2") == RenewSinkRunResponse(last_batch=0)


def test_a_sinks_run_that_was_followed_gives_its_signs_in_vain() -> None:
    node = sink_node()
    first, second = SinkWriter(node, "r1"), SinkWriter(node, "r2")
    assert first.commit(0, first.write(0, b"one")).error_code == E.NONE
    assert second.commit(1, second.write(1, b"two")).error_code == E.NONE
    assert _sign(node, "r1").error_code == E.PRODUCER_FENCED
    assert _sign(node, "r2", lease_ms=0).error_code == E.INVALID_REQUEST


def test_a_sink_that_is_unused_is_forgotten_and_its_last_batch_is_a_new_one() -> None:
    node, writer = writing()
    assert writer.commit(0, writer.write(0, b"one")).error_code == E.NONE
    week_ms = 604_800_000
    node.clock.advance(week_ms + 3_600_000)
    assert node.send(DescribeSinksRequest(), 0).response.sinks == ()
    assert writer.commit(0, writer.write(0, b"one")) == CommitSinkResponse(last_batch=0)
    assert node.committed_values("orders") == [b"one", b"one"], "as docs/compatibility.md says"


@versions
def test_a_sink_uses_producer_ids_again_with_the_next_epoch(version: int) -> None:
    node, writer = writing(version=version)
    used: list[tuple[int, int]] = []
    for batch in range(5):
        members = [writer.write(batch, b"%d" % batch, task=task) for task in (0, 1)]
        used += [(member.producer_id, member.producer_epoch) for member in members]
        assert writer.commit(batch, *members).error_code == E.NONE
    assert len({producer_id for producer_id, _ in used}) == 2
    for producer_id in {producer_id for producer_id, _ in used}:
        assert [epoch for each, epoch in used if each == producer_id] == [0, 2, 4, 6, 8], "one belongs to the marker"
    assert node.committed_values("orders") == [b"%d" % batch for batch in range(5) for _ in (0, 1)]


def test_the_former_member_of_a_sink_with_the_producer_is_fenced_everywhere() -> None:
    node, writer = writing()
    first = writer.member(0)
    assert first.initialize() is E.NONE
    writer.write_as(first, b"one")
    assert writer.commit(0, identity(first)).error_code == E.NONE
    second = writer.member(1)
    assert second.initialize() is E.NONE
    assert second.producer_id == first.producer_id
    writer.write_as(second, b"two")
    for topic in ("orders", "bills"):
        assert first.send(topic, b"late") is not E.NONE
    assert first.end(is_commit=False) is E.INVALID_PRODUCER_ID_MAPPING
    assert writer.commit(1, identity(second)).error_code == E.NONE
    assert node.committed_values("orders") == [b"one", b"two"]


def test_aborted_members_of_a_sink_give_their_producers_too_and_other_sinks_get_none() -> None:
    node = sink_node()
    writer, other = SinkWriter(node, "r1"), SinkWriter(node, "r1", sink="other")
    client = writer.member(0)
    assert client.initialize() is E.NONE
    writer.write_as(client, b"gone")
    producer_id = client.producer_id
    assert client.end(is_commit=False) is E.NONE
    assert other.write(0, b"x").producer_id != producer_id
    assert writer.write(0, b"y").producer_id == producer_id


def test_kept_producers_of_sinks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_memory, "MOST_OF_SINK", 3)
    monkeypatch.setattr(sink_memory, "MOST_OF_PARTITION", 5)
    kept = sink_memory.SinkProducers()
    for producer_id in range(10):
        kept.add("a", producer_id, 0)
    assert len(kept) == 3
    for producer_id in range(10):
        kept.add("b", producer_id, 0)
    assert len(kept) == 5
    assert kept.take("a") == (0, 1)
    kept.forget("b")
    assert len(kept) == 2
    assert kept.take("b") is None
    kept.add("c", 9, 2**15 - 3)
    assert kept.take("c") is None, "its epochs are used up"
