"""Sinks on a node: real partitions, a real metadata log, and a simulated disk."""

from collections.abc import Sequence

import pytest

from tailrace.coordinators.transactions import sinks as rules
from tailrace.metadata.broker_commands import OWN_FEATURES, RegisterBroker
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.model.sinks import SINKS_FEATURE, SinkMember, sink_key
from tailrace.protocol.messages.api_versions import ApiVersionsRequest
from tailrace.protocol.messages.sinks import (
    CommitSinkRequest,
    CommitSinkResponse,
    DescribeSinksRequest,
    MemberToCommit,
    RenewSinkRunRequest,
    RenewSinkRunResponse,
)
from tailrace.protocol.messages.transactions import ListTransactionsRequest
from tailrace.server.transactions import sink_memory
from tailrace.server.transactions.sinks import MAX_SINKS
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.sink_path import SinkWriter, find_sink, identity
from testkit.coordinators.transaction_path import TransactionPath
from testkit.nodes.ports import HoldingDisk

E = ErrorCode


def _node(
    files: SimulatedDisk | None = None,
    *,
    start: int = 1,
    clock: ManualClock | None = None,
    disk: HoldingDisk | None = None,
) -> TransactionPath:
    node = TransactionPath("/data", files=files or SimulatedDisk(seed=1), start=start, clock=clock, disk=disk)
    if start == 1:
        node.create_topics("orders", "bills")
        find_sink(node)
    return node


versions = pytest.mark.parametrize("version", [0, 2])


def _names(node: TransactionPath) -> list[str]:
    found = node.send(ListTransactionsRequest(), 1).response.transaction_states
    return sorted(each.transactional_id for each in found)


@versions
def test_a_batch_is_seen_whole_when_its_commit_is_answered(version: int) -> None:
    node = _node()
    writer = SinkWriter(node, "r1", version=version)
    first = writer.write(0, b"one", task=0)
    two = writer.write(0, b"two", task=1, topic="bills")
    assert node.committed_values("orders") == node.committed_values("bills") == []
    assert writer.commit(0, first, two) == CommitSinkResponse(last_batch=0)
    assert node.committed_values("orders") == [b"one"]
    assert node.committed_values("bills") == [b"two"]
    assert _names(node) == [], "members leave the log with their markers"


@versions
def test_attempts_that_are_not_named_leave_nothing(version: int) -> None:
    node = _node()
    writer = SinkWriter(node, "r1", version=version)
    writer.write(0, b"failed", attempt=0)
    taken = writer.write(0, b"taken", attempt=1)
    writer.write(0, b"slow", attempt=2)
    never = writer.member(0, 7)
    assert never.initialize() is E.NONE
    assert writer.commit(0, taken).error_code == E.NONE
    assert node.committed_values("orders") == [b"taken"]
    assert node.produce("orders", b"plain").produced.error_code == E.NONE
    assert node.committed_values("orders") == [b"taken", b"plain"], "no transaction is left open"
    assert _names(node) == []


@versions
def test_zombies_of_a_decided_batch_write_nothing(version: int) -> None:
    node = _node()
    writer = SinkWriter(node, "r1", version=version)
    zombie, idle = writer.member(0, attempt=0), writer.member(0, attempt=2)
    for client in (zombie, idle):
        assert client.initialize() is E.NONE
    writer.write_as(zombie, b"early")
    assert writer.commit(0, writer.write(0, b"taken", attempt=1)).error_code == E.NONE
    for topic in ("orders", "bills"):
        assert zombie.send(topic, b"late") is not E.NONE
        assert idle.send(topic, b"late") is not E.NONE
    assert zombie.add("bills") is E.INVALID_PRODUCER_ID_MAPPING
    assert writer.member(0, attempt=3).initialize() is E.DUPLICATE_SEQUENCE_NUMBER
    assert node.committed_values("orders") == [b"taken"]
    assert node.committed_values("bills") == []
    assert node.values("bills") == []


def test_a_replay_by_the_next_run_changes_nothing_and_fences_the_first() -> None:
    node = _node()
    first, second = SinkWriter(node, "r1"), SinkWriter(node, "r2")
    again = second.write(0, b"again")
    assert first.commit(0, first.write(0, b"one")).error_code == E.NONE
    assert second.commit(0, again) == CommitSinkResponse(is_repetition=True, last_batch=0)
    assert node.committed_values("orders") == [b"one"]
    assert first.commit(1).error_code == E.PRODUCER_FENCED
    assert first.member(1).initialize() is E.PRODUCER_FENCED
    assert second.commit(1, second.write(1, b"two")).last_batch == 1
    assert node.committed_values("orders") == [b"one", b"two"]


def test_a_refusal_has_its_text_and_the_last_batch() -> None:
    node = _node()
    SinkWriter(node, "r1").commit(5)
    refused = SinkWriter(node, "r2").commit(3)
    assert (refused.error_code, refused.last_batch) == (E.OUT_OF_ORDER_SEQUENCE_NUMBER, 5)
    assert "another sink id" in (refused.error_message or "")


def test_a_refused_batch_stays_open_and_may_be_committed_then() -> None:
    node = _node()
    writer = SinkWriter(node, "r1")
    member = writer.write(0, b"one")
    unknown = MemberToCommit(
        transactional_id=SinkMember("copy", "r1", 0, 1, 0).transactional_id, producer_id=1, producer_epoch=0
    )
    assert writer.commit(0, member, unknown).error_code == E.INVALID_PRODUCER_ID_MAPPING
    assert node.committed_values("orders") == []
    assert writer.commit(0, member).error_code == E.NONE
    assert node.committed_values("orders") == [b"one"]


@pytest.mark.parametrize("sink", ["", "a/b", "s" * 201])
def test_a_malformed_sink_is_refused(sink: str) -> None:
    assert SinkWriter(_node(), "r1", sink=sink).commit(0).error_code == E.INVALID_REQUEST


def test_all_members_have_the_coordinator_of_their_sink() -> None:
    node = _node()
    service = node.transactions
    host = service.host_of(sink_key("copy"))
    assert host is not service.host_of(sink_key("other1")) or host is not service.host_of(sink_key("other2"))
    for batch in range(20):
        assert service.host_of(SinkMember("copy", f"r{batch}", batch, batch, 0).transactional_id) is host


# Answers, waits and failures


def _holding() -> tuple[TransactionPath, HoldingDisk, SimulatedDisk]:
    files, clock = SimulatedDisk(seed=3), ManualClock()
    disk = HoldingDisk(clock.call_soon)
    return _node(files, clock=clock, disk=disk), disk, files


def test_the_answer_comes_when_the_markers_of_all_members_are_written() -> None:
    node, disk, _ = _holding()
    writer = SinkWriter(node, "r1")
    members = [writer.write(0, b"one", task=0), writer.write(0, b"two", task=1, topic="bills")]
    disk.holds = True
    exchange = writer.ask_to_commit(0, *members)
    repeated = writer.ask_to_commit(0, *members)
    assert repeated.response.error_code == E.CONCURRENT_TRANSACTIONS
    for step in ("decision", "markers", "completions"):
        assert not exchange.is_answered, step
        disk.run()
        node.end_turn()
    assert exchange.response == CommitSinkResponse(last_batch=0)
    assert node.committed_values("orders") + node.committed_values("bills") == [b"one", b"two"]


def test_a_commit_whose_markers_take_too_long_is_repeated_by_its_client() -> None:
    node, disk, _ = _holding()
    writer = SinkWriter(node, "r1")
    member = writer.write(0, b"one")
    disk.holds = True
    exchange = writer.ask_to_commit(0, member, timeout_ms=2_000)
    disk.run()
    node.end_turn()
    assert not exchange.is_answered
    at_once = writer.ask_to_commit(0, member, timeout_ms=-1)
    node.clock.advance(2_000)
    assert exchange.response.error_code == at_once.response.error_code == E.REQUEST_TIMED_OUT
    waiting = writer.ask_to_commit(0, member)
    assert not waiting.is_answered
    disk.holds = False
    disk.run()
    node.end_turn()
    assert waiting.response == CommitSinkResponse(is_repetition=True, last_batch=0)
    assert node.committed_values("orders") == [b"one"]


@versions
@pytest.mark.parametrize("flushes", [0, 1, 2, 3])
def test_a_power_cut_anywhere_leaves_all_or_nothing(version: int, flushes: int) -> None:
    """The next coordinator finds the decision, if any, and ends each transaction that is not in the decision."""
    node, disk, files = _holding()
    writer = SinkWriter(node, "r1", version=version)
    members = [writer.write(0, b"one", task=0), writer.write(0, b"two", task=1, topic="bills")]
    writer.write(0, b"zombie", task=0, attempt=1)
    disk.holds = True
    writer.ask_to_commit(0, *members)
    for _ in range(flushes):
        disk.run()
        node.end_turn()
    files.power_cut()
    files.reboot()
    again = _node(files, start=2)
    writer.node = again
    if flushes:
        assert writer.commit(0, *members).is_repetition
    else:
        assert writer.commit(0, *members) == CommitSinkResponse(last_batch=0)
    assert again.committed_values("orders") == [b"one"]
    assert again.committed_values("bills") == [b"two"]
    assert _names(again) == []
    assert again.produce("orders", b"plain").produced.error_code == E.NONE
    assert again.committed_values("orders") == [b"one", b"plain"]


def test_waiting_commits_end_with_the_coordinator() -> None:
    node, disk, _ = _holding()
    writer = SinkWriter(node, "r1")
    member = writer.write(0, b"one")
    disk.holds = True
    exchange = writer.ask_to_commit(0, member)
    disk.run()
    node.end_turn()
    node.transactions.close()
    assert exchange.response.error_code == E.NOT_COORDINATOR


def test_ends_that_do_not_fit_the_decision_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    node = _node()
    writer = SinkWriter(node, "r1")
    for attempt in range(1, 6):
        writer.write(0, b"zombie", attempt=attempt)
    taken = writer.write(0, b"taken")
    monkeypatch.setattr(rules, "MOST_DECISION_BYTES", 500)
    assert writer.commit(0, taken).error_code == E.NONE
    assert _names(node) == []
    assert node.committed_values("orders") == [b"taken"]


def test_a_decision_that_is_too_large_is_refused_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    node = _node()
    writer = SinkWriter(node, "r1")
    members = [writer.write(0, b"x", task=task) for task in range(3)]
    monkeypatch.setattr(rules, "MOST_DECISION_BYTES", 500)
    refused = writer.commit(0, *members)
    assert refused.error_code == E.MESSAGE_TOO_LARGE
    assert "fewer tasks" in (refused.error_message or "")
    assert writer.describe().last_batch == -1


def test_a_commit_of_5000_members_is_one_record_batch() -> None:
    """The log takes the largest batch too."""
    node = _node()
    writer = SinkWriter(node, "r1")
    members: list[MemberToCommit] = []
    host = node.transactions.host_of(sink_key("copy"))
    while len(members) < rules.MOST_MEMBERS:
        client = writer.member(0, len(members))
        assert client.ask_for_identity().response.error_code == E.NONE
        known = host.machine.transactions[client.transactional_id]
        client.take(known.producer_id, known.producer_epoch)
        assert client.add("orders") is E.NONE
        members.append(identity(client))
    end_offset = host.partition.log.log_end_offset
    most = _most_that_fit(writer, members)
    assert most > 4_000
    assert host.partition.log.log_end_offset > end_offset + most
    assert writer.describe().last_batch == 0


def _most_that_fit(writer: SinkWriter, members: Sequence[MemberToCommit]) -> int:
    """Commit as many as fit, and return their number."""
    most = len(members)
    while (answer := writer.commit(0, *members[:most])).error_code == E.MESSAGE_TOO_LARGE:
        most -= 50
    assert answer == CommitSinkResponse(last_batch=0)
    return most


# Time


def test_a_member_times_out_before_the_decision() -> None:
    node = _node()
    writer = SinkWriter(node, "r1")
    member = writer.write(0, b"one")
    node.clock.advance(75_000)
    assert _names(node) == []
    assert writer.commit(0, member).error_code == E.INVALID_PRODUCER_ID_MAPPING
    assert node.committed_values("orders") == []


def _sign(node: TransactionPath, run: str, lease_ms: int = 10_000) -> RenewSinkRunResponse:
    answer = node.send(RenewSinkRunRequest(sink_id="copy", run=run, lease_ms=lease_ms), 0).response
    assert isinstance(answer, RenewSinkRunResponse)
    return answer


def test_a_run_that_gives_no_more_signs_of_life_holds_no_reader_up() -> None:
    node = _node()
    writer, silent = SinkWriter(node, "r1"), SinkWriter(node, "r2")
    members = [writer.write(0, b"one"), writer.write(0, b"two", task=1)]
    other = silent.write(0, b"other")
    assert _sign(node, "r1") == RenewSinkRunResponse(last_batch=-1)
    for _ in range(3):
        node.clock.advance(9_000)
        assert _sign(node, "r1").error_code == E.NONE
    assert len(_names(node)) == 3
    node.clock.advance(31_000)
    assert _names(node) == [other.transactional_id], "a run that has promised nothing has its timeout"
    assert writer.commit(0, *members).error_code == E.INVALID_PRODUCER_ID_MAPPING
    assert node.committed_values("orders") == []
    assert silent.commit(0, other).error_code == E.NONE
    assert _sign(node, "r2") == RenewSinkRunResponse(last_batch=0)


def test_a_run_that_was_followed_gives_its_signs_in_vain() -> None:
    node = _node()
    first, second = SinkWriter(node, "r1"), SinkWriter(node, "r2")
    assert first.commit(0, first.write(0, b"one")).error_code == E.NONE
    assert second.commit(1, second.write(1, b"two")).error_code == E.NONE
    assert _sign(node, "r1").error_code == E.PRODUCER_FENCED
    assert _sign(node, "r2", lease_ms=0).error_code == E.INVALID_REQUEST


def test_a_sink_that_is_unused_is_forgotten_and_its_last_batch_is_a_new_one() -> None:
    node = _node()
    writer = SinkWriter(node, "r1")
    assert writer.commit(0, writer.write(0, b"one")).error_code == E.NONE
    week_ms = 604_800_000
    node.clock.advance(week_ms + 3_600_000)
    assert node.send(DescribeSinksRequest(), 0).response.sinks == ()
    assert writer.commit(0, writer.write(0, b"one")) == CommitSinkResponse(last_batch=0)
    assert node.committed_values("orders") == [b"one", b"one"], "as docs/compatibility.md says"


# Producer ids


@versions
def test_producer_ids_are_used_again_with_the_next_epoch(version: int) -> None:
    node = _node()
    writer = SinkWriter(node, "r1", version=version)
    used: list[tuple[int, int]] = []
    for batch in range(5):
        members = [writer.write(batch, b"%d" % batch, task=task) for task in (0, 1)]
        used += [(member.producer_id, member.producer_epoch) for member in members]
        assert writer.commit(batch, *members).error_code == E.NONE
    assert len({producer_id for producer_id, _ in used}) == 2
    for producer_id in {producer_id for producer_id, _ in used}:
        assert [epoch for each, epoch in used if each == producer_id] == [0, 2, 4, 6, 8], "one belongs to the marker"
    assert node.committed_values("orders") == [b"%d" % batch for batch in range(5) for _ in (0, 1)]


def test_the_former_member_with_the_producer_is_fenced_everywhere() -> None:
    node = _node()
    writer = SinkWriter(node, "r1")
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


def test_aborted_members_give_their_producers_too_and_other_sinks_get_none() -> None:
    node = _node()
    writer, other = SinkWriter(node, "r1"), SinkWriter(node, "r1", sink="other")
    client = writer.member(0)
    assert client.initialize() is E.NONE
    writer.write_as(client, b"gone")
    producer_id = client.producer_id
    assert client.end(is_commit=False) is E.NONE
    assert other.write(0, b"x").producer_id != producer_id
    assert writer.write(0, b"y").producer_id == producer_id


def test_kept_producers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
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


# Limits, descriptions, levels


def test_sinks_count_among_transactional_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    node = _node()
    for sink in ("a", "b"):
        SinkWriter(node, "r1", sink=sink).commit(0)
    monkeypatch.setattr(node.transactions, "_max_keys", 2)
    refused = SinkWriter(node, "r1", sink="c").commit(0)
    assert refused.error_code == E.INVALID_REQUEST
    assert SinkWriter(node, "r1", sink="a").commit(1).error_code == E.NONE


def test_sinks_are_described() -> None:
    node = _node()
    writer = SinkWriter(node, "r1")
    writer.write(0, b"one")
    before = writer.describe()
    assert (before.run, before.last_batch, before.updated_at_ms, before.open_members) == ("", -1, -1, 1)
    writer.ask_to_commit(0, origin="/checkpoint")
    second = SinkWriter(node, "r2")
    second.commit(1)
    second.write(2, b"two")
    described = second.describe()
    assert (described.run, described.last_batch, described.origin) == ("r2", 1, "/checkpoint")
    assert (described.past_runs, described.open_members, described.ending_members) == (1, 1, 0)
    assert described.updated_at_ms == node.clock.now_ms()


def test_all_sinks_are_described_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_SINKS == 1_000
    monkeypatch.setattr("tailrace.server.transactions.sinks.MAX_SINKS", 2)
    node = _node()
    names = [f"sink{number}" for number in range(5)]
    for name in names:
        SinkWriter(node, "r1", sink=name).commit(0)
    found: list[str] = []
    first = ""
    while True:
        answer = node.send(DescribeSinksRequest(first_sink_id=first), 0).response
        found += [each.sink_id for each in answer.sinks]
        first = answer.next_sink_id
        if not first:
            break
    assert found == names


def _announced(node: TransactionPath) -> set[str]:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    return {feature.name for feature in node.send(request, 3).response.supported_features}


def test_sinks_wait_until_all_brokers_know_them() -> None:
    node = _node()
    assert SINKS_FEATURE in _announced(node)
    older = RegisterBroker(broker_id=BrokerId(7), incarnation_id=bytes(16), endpoints=(), features=OWN_FEATURES)
    node.controller.submit(older, lambda _: None)
    node.end_turn()
    assert SINKS_FEATURE not in _announced(node)
    writer = SinkWriter(node, "r1")
    refused = writer.commit(0)
    assert refused.error_code == E.UNSUPPORTED_VERSION
    assert "broker 7 does not know sinks" in (refused.error_message or "")
    assert writer.member(0).initialize() is E.UNSUPPORTED_VERSION


def test_a_request_of_100_000_members_is_refused() -> None:
    node = _node()
    member = MemberToCommit(
        transactional_id=SinkMember("copy", "r1", 0, 1, 0).transactional_id, producer_id=1, producer_epoch=0
    )
    request = CommitSinkRequest(sink_id="copy", run="r1", batch=0, members=(member,) * 100_000)
    assert node.send(request, 0).response.error_code == E.MESSAGE_TOO_LARGE
