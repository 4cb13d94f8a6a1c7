"""Sinks on a node: real partitions, a real metadata log, and a simulated disk."""

from collections.abc import Sequence

import pytest

from tailrace.coordinators.transactions import sinks as rules
from tailrace.metadata.broker_commands import OWN_FEATURES, RegisterBroker
from tailrace.model.ids import BrokerId
from tailrace.model.sinks import SINKS_FEATURE, SinkMember, sink_key
from tailrace.protocol.messages.api_versions import ApiVersionsRequest
from tailrace.protocol.messages.sinks import CommitSinkRequest, CommitSinkResponse, DescribeSinksRequest, MemberToCommit
from tailrace.server.transactions.sinks import MAX_SINKS
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.sink_path import SinkWriter, identity
from testkit.coordinators.transaction_path import TransactionPath
from testkit.nodes.ports import HoldingDisk
from unit.server.transactions.sink_nodes import E, open_names, sink_node, versions, writing

UNKNOWN = MemberToCommit(
    transactional_id=SinkMember("copy", "r1", 0, 1, 0).transactional_id, producer_id=1, producer_epoch=0
)


@versions
def test_a_sinks_batch_is_seen_whole_when_its_commit_is_answered(version: int) -> None:
    node, writer = writing(version=version)
    first = writer.write(0, b"one", task=0)
    two = writer.write(0, b"two", task=1, topic="bills")
    assert node.committed_values("orders") == node.committed_values("bills") == []
    assert writer.commit(0, first, two) == CommitSinkResponse(last_batch=0)
    assert node.committed_values("orders") == [b"one"]
    assert node.committed_values("bills") == [b"two"]
    assert open_names(node) == [], "members leave the log with their markers"


@versions
def test_attempts_that_a_sinks_commit_does_not_name_leave_nothing(version: int) -> None:
    node, writer = writing(version=version)
    writer.write(0, b"failed", attempt=0)
    taken = writer.write(0, b"taken", attempt=1)
    writer.write(0, b"slow", attempt=2)
    never = writer.member(0, 7)
    assert never.initialize() is E.NONE
    assert writer.commit(0, taken).error_code == E.NONE
    assert node.committed_values("orders") == [b"taken"]
    assert node.produce("orders", b"plain").produced.error_code == E.NONE
    assert node.committed_values("orders") == [b"taken", b"plain"], "no transaction is left open"
    assert open_names(node) == []


@versions
def test_zombies_of_a_sinks_decided_batch_write_nothing(version: int) -> None:
    node, writer = writing(version=version)
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
    assert node.committed_values("bills") == node.values("bills") == []


def test_a_replay_by_a_sinks_next_run_changes_nothing_and_fences_the_first() -> None:
    node = sink_node()
    first, second = SinkWriter(node, "r1"), SinkWriter(node, "r2")
    again = second.write(0, b"again")
    assert first.commit(0, first.write(0, b"one")).error_code == E.NONE
    assert second.commit(0, again) == CommitSinkResponse(is_repetition=True, last_batch=0)
    assert node.committed_values("orders") == [b"one"]
    assert first.commit(1).error_code == E.PRODUCER_FENCED
    assert first.member(1).initialize() is E.PRODUCER_FENCED
    assert second.commit(1, second.write(1, b"two")).last_batch == 1
    assert node.committed_values("orders") == [b"one", b"two"]


def test_a_refused_commit_of_a_sink_has_its_text_and_the_last_batch() -> None:
    node = sink_node()
    SinkWriter(node, "r1").commit(5)
    refused = SinkWriter(node, "r2").commit(3)
    assert (refused.error_code, refused.last_batch) == (E.OUT_OF_ORDER_SEQUENCE_NUMBER, 5)
    assert "another sink id" in (refused.error_message or "")


def test_a_refused_batch_of_a_sink_stays_open_and_may_be_committed_then() -> None:
    node, writer = writing()
    member = writer.write(0, b"one")
    assert writer.commit(0, member, UNKNOWN).error_code == E.INVALID_PRODUCER_ID_MAPPING
    assert node.committed_values("orders") == []
    assert writer.commit(0, member).error_code == E.NONE
    assert node.committed_values("orders") == [b"one"]


@pytest.mark.parametrize("sink", ["", "a/b", "s" * 201])
def test_a_malformed_sink_is_refused(sink: str) -> None:
    assert SinkWriter(sink_node(), "r1", sink=sink).commit(0).error_code == E.INVALID_REQUEST


def test_all_members_have_the_coordinator_of_their_sink() -> None:
    node = sink_node()
    service = node.transactions
    host = service.host_of(sink_key("copy"))
    assert host is not service.host_of(sink_key("other1")) or host is not service.host_of(sink_key("other2"))
    for batch in range(20):
        assert service.host_of(SinkMember("copy", f"r{batch}", batch, batch, 0).transactional_id) is host


# Answers, waits and failures


def _holding() -> tuple[TransactionPath, HoldingDisk, SimulatedDisk]:
    files, clock = SimulatedDisk(seed=3), ManualClock()
    disk = HoldingDisk(clock.call_soon)
    return sink_node(files, clock=clock, disk=disk), disk, files


def _flush(node: TransactionPath, disk: HoldingDisk) -> None:
    disk.run()
    node.end_turn()


def test_a_sinks_commit_is_answered_when_the_markers_of_all_members_are_written() -> None:
    node, disk, _ = _holding()
    writer = SinkWriter(node, "r1")
    members = [writer.write(0, b"one", task=0), writer.write(0, b"two", task=1, topic="bills")]
    disk.holds = True
    exchange = writer.ask_to_commit(0, *members)
    repeated = writer.ask_to_commit(0, *members)
    assert repeated.response.error_code == E.CONCURRENT_TRANSACTIONS
    for step in ("decision", "markers", "completions"):
        assert not exchange.is_answered, step
        _flush(node, disk)
    assert exchange.response == CommitSinkResponse(last_batch=0)
    assert node.committed_values("orders") + node.committed_values("bills") == [b"one", b"two"]


def test_a_sinks_commit_whose_markers_take_too_long_is_repeated_by_its_client() -> None:
    node, disk, _ = _holding()
    writer = SinkWriter(node, "r1")
    member = writer.write(0, b"one")
    disk.holds = True
    exchange = writer.ask_to_commit(0, member, timeout_ms=2_000)
    _flush(node, disk)
    assert not exchange.is_answered
    at_once = writer.ask_to_commit(0, member, timeout_ms=-1)
    node.clock.advance(2_000)
    assert exchange.response.error_code == at_once.response.error_code == E.REQUEST_TIMED_OUT
    waiting = writer.ask_to_commit(0, member)
    assert not waiting.is_answered
    disk.holds = False
    _flush(node, disk)
    assert waiting.response == CommitSinkResponse(is_repetition=True, last_batch=0)
    assert node.committed_values("orders") == [b"one"]


@versions
@pytest.mark.parametrize("flushes", [0, 1, 2, 3])
def test_a_power_cut_leaves_all_of_a_sinks_batch_or_nothing(version: int, flushes: int) -> None:
    """The next coordinator finds the decision, if any, and ends each transaction that is not in the decision."""
    node, disk, files = _holding()
    writer = SinkWriter(node, "r1", version=version)
    members = [writer.write(0, b"one", task=0), writer.write(0, b"two", task=1, topic="bills")]
    writer.write(0, b"zombie", task=0, attempt=1)
    disk.holds = True
    writer.ask_to_commit(0, *members)
    for _ in range(flushes):
        _flush(node, disk)
    files.power_cut()
    files.reboot()
    again = sink_node(files, start=2)
    writer.node = again
    if flushes:
        assert writer.commit(0, *members).is_repetition
    else:
        assert writer.commit(0, *members) == CommitSinkResponse(last_batch=0)
    assert again.committed_values("orders") == [b"one"]
    assert again.committed_values("bills") == [b"two"]
    assert open_names(again) == []
    assert again.produce("orders", b"plain").produced.error_code == E.NONE
    assert again.committed_values("orders") == [b"one", b"plain"]


def test_waiting_commits_of_sinks_end_with_the_coordinator() -> None:
    node, disk, _ = _holding()
    writer = SinkWriter(node, "r1")
    member = writer.write(0, b"one")
    disk.holds = True
    exchange = writer.ask_to_commit(0, member)
    _flush(node, disk)
    node.transactions.close()
    assert exchange.response.error_code == E.NOT_COORDINATOR


def test_ends_that_do_not_fit_a_sinks_decision_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    node, writer = writing()
    for attempt in range(1, 6):
        writer.write(0, b"zombie", attempt=attempt)
    taken = writer.write(0, b"taken")
    monkeypatch.setattr(rules, "MOST_DECISION_BYTES", 500)
    assert writer.commit(0, taken).error_code == E.NONE
    assert open_names(node) == []
    assert node.committed_values("orders") == [b"taken"]


def test_a_sinks_decision_that_is_too_large_is_refused_before_any_write(monkeypatch: pytest.MonkeyPatch) -> None:
    _, writer = writing()
    members = [writer.write(0, b"x", task=task) for task in range(3)]
    monkeypatch.setattr(rules, "MOST_DECISION_BYTES", 500)
    refused = writer.commit(0, *members)
    assert refused.error_code == E.MESSAGE_TOO_LARGE
    assert "fewer tasks" in (refused.error_message or "")
    assert writer.describe().last_batch == -1


@pytest.mark.in_turn
def test_a_sinks_commit_of_5000_members_is_one_record_batch() -> None:
    """The log takes the largest batch too."""
    node, writer = writing()
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


# Limits, descriptions, levels


def test_sinks_count_among_transactional_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    node = sink_node()
    for sink in ("a", "b"):
        SinkWriter(node, "r1", sink=sink).commit(0)
    monkeypatch.setattr(node.transactions, "_max_keys", 2)
    refused = SinkWriter(node, "r1", sink="c").commit(0)
    assert refused.error_code == E.INVALID_REQUEST
    assert SinkWriter(node, "r1", sink="a").commit(1).error_code == E.NONE


def test_sinks_are_described() -> None:
    node, writer = writing()
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
    node = sink_node()
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
    node = sink_node()
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


def test_a_sinks_request_of_100_000_members_is_refused() -> None:
    node = sink_node()
    request = CommitSinkRequest(sink_id="copy", run="r1", batch=0, members=(UNKNOWN,) * 100_000)
    assert node.send(request, 0).response.error_code == E.MESSAGE_TOO_LARGE
