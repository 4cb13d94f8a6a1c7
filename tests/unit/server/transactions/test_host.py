"""The transaction coordinators of a node: real partitions, a real metadata log, and a simulated disk."""

import pytest

from tailrace.metadata.commands import TopicReference
from tailrace.model.errors import ErrorCode, StorageError
from tailrace.model.partitions import TRANSACTION_STATE_TOPIC
from tailrace.protocol.messages.metadata import MetadataRequest
from tailrace.protocol.messages.transactions import ListTransactionsRequest
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.transaction_path import TransactionalClient, transaction_node
from testkit.nodes.faults import lose_power
from testkit.nodes.ports import HoldingDisk
from testkit.quorum.controller_commands import delete_topics

E = ErrorCode
versions = pytest.mark.parametrize("version", [0, 2])


def test_the_topic_of_transactions_is_kafkas() -> None:
    node = transaction_node()
    node.find_transaction_coordinator("pay")
    image = node.controller.image
    assert len(image.topics[TRANSACTION_STATE_TOPIC].partitions) == 4
    assert image.topic_overrides(TRANSACTION_STATE_TOPIC) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }
    (topic,) = [
        topic for topic in node.send(MetadataRequest(topics=None), 12).response.topics if topic.name.startswith("__t")
    ]
    assert topic.is_internal


@versions
def test_a_transaction_is_seen_whole_or_not_at_all(version: int) -> None:
    node = transaction_node()
    client = TransactionalClient.begun(node, version=version)
    for number, is_commit in enumerate((True, False, True, False, False, True)):
        for topic in ("orders", "bills"):
            assert client.write(topic, f"{number}".encode()) is E.NONE
        before = node.committed_values("orders")
        assert client.end(is_commit=is_commit) is E.NONE
        expected = [f"{number}".encode()] if is_commit else []
        for topic in ("orders", "bills"):
            assert node.committed_values(topic) == before + expected
        assert client.initialize() is E.NONE
    assert node.committed_values("orders") == [b"0", b"2", b"5"]


@versions
def test_a_second_producer_instance_fences_the_first_and_aborts_its_transaction(version: int) -> None:
    node = transaction_node()
    first = TransactionalClient.begun(node, version=version)
    assert first.write("orders", b"lost") is E.NONE
    exchange = TransactionalClient(node, "pay").ask_for_identity()
    assert exchange.response.error_code == E.CONCURRENT_TRANSACTIONS
    second = TransactionalClient.begun(node, version=version)
    assert second.producer_id == first.producer_id
    assert second.producer_epoch > first.producer_epoch
    assert first.add("orders") is E.PRODUCER_FENCED
    assert first.add("orders", version=1) is E.INVALID_PRODUCER_EPOCH
    assert first.send("orders", b"late") is E.INVALID_PRODUCER_EPOCH
    assert first.end(is_commit=True) is E.PRODUCER_FENCED
    assert node.committed_values("orders") == []
    assert second.write("orders", b"kept") is E.NONE
    assert second.end(is_commit=True) is E.NONE
    assert node.committed_values("orders") == [b"kept"]


def test_no_decision_of_a_transaction_is_visible_before_it_is_on_disk() -> None:
    clock = ManualClock()
    disk = HoldingDisk(clock.call_soon)
    node = transaction_node(clock=clock, disk=disk)
    client = TransactionalClient.begun(node)
    assert client.write("orders", b"one") is E.NONE
    disk.holds = True
    ending = client.ask_for_end(is_commit=True)
    assert not ending.is_answered
    assert node.committed_values("orders") == []
    assert client.ask_for_end(is_commit=True).response.error_code == E.CONCURRENT_TRANSACTIONS
    disk.run()
    assert ending.response.error_code == E.NONE
    node.end_turn()
    assert node.committed_values("orders") == [], "the marker is not on disk"
    disk.run()
    assert node.committed_values("orders") == [b"one"]


@versions
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_power_cut_between_decision_and_completion_changes_nothing(version: int, is_commit: bool) -> None:
    """The next coordinator finds the decision, and carries it out."""
    files, clock = SimulatedDisk(seed=5), ManualClock()
    disk = HoldingDisk(clock.call_soon)
    node = transaction_node(files, clock=clock, disk=disk)
    client = TransactionalClient.begun(node, version=version)
    for topic in ("orders", "bills"):
        assert client.write(topic, b"one") is E.NONE
    disk.holds = True
    ending = client.ask_for_end(is_commit=is_commit)
    disk.run()
    assert ending.response.error_code == E.NONE
    assert node.transaction().state.is_prepared, "the markers are on their way, and not on disk"
    lose_power(files)
    again = transaction_node(files, start=2)
    assert not again.transaction().state.is_prepared
    for topic in ("orders", "bills"):
        assert again.committed_values(topic) == ([b"one"] if is_commit else [])
    successor = TransactionalClient.begun(again, version=version)
    assert successor.write("orders", b"two") is E.NONE
    assert successor.end(is_commit=True) is E.NONE
    assert again.committed_values("orders")[-1:] == [b"two"]


@versions
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_completion_that_is_committed_late_is_not_taken_for_the_next_ones(version: int, is_commit: bool) -> None:
    """The completion took longer than an answer waits, and was to be tried again: by then the next transaction ends."""
    clock = ManualClock()
    disk = HoldingDisk(clock.call_soon)
    node = transaction_node(clock=clock, disk=disk)
    client = TransactionalClient.begun(node, version=version)
    assert client.write("orders", b"one") is E.NONE
    disk.holds = True
    ending = client.ask_for_end(is_commit=True)
    for _ in range(2):  # the decision, and the marker
        disk.run()
        node.end_turn()
    clock.advance(5_000)
    assert node.transaction().state.is_prepared, "the completion is not on disk yet"
    disk.run()
    disk.holds = False
    node.end_turn()
    assert not node.transaction().state.is_prepared
    answer = ending.response
    if version >= 2:
        client.take(answer.producer_id, answer.producer_epoch)
    assert client.write("orders", b"two") is E.NONE
    disk.holds = True
    client.ask_for_end(is_commit=is_commit)
    disk.run()
    clock.advance(500)
    assert node.transaction().state.is_prepared, "its marker is not on disk"
    disk.holds = False
    disk.run()
    node.end_turn()
    clock.advance(1_000)
    assert not node.transaction().state.is_prepared
    assert node.committed_values("orders") == ([b"one", b"two"] if is_commit else [b"one"])
    assert node.produce("orders", b"plain").produced.error_code == E.NONE
    assert node.committed_values("orders")[-1] == b"plain", "no transaction is left open"


def test_an_open_transaction_outlives_a_power_cut_and_times_out_later() -> None:
    files = SimulatedDisk(seed=6)
    node = transaction_node(files)
    client = TransactionalClient.begun(node)
    assert client.write("orders", b"one") is E.NONE
    lose_power(files)
    again = transaction_node(files, start=2, clock=node.clock)
    assert again.describe_transaction("pay").transaction_state == "Ongoing"
    assert again.produce("orders", b"plain").produced.error_code == E.NONE
    assert again.committed_values("orders") == [], "nothing beyond an open transaction"
    again.clock.advance(75_000)
    assert again.describe_transaction("pay").transaction_state == "CompleteAbort"
    assert again.committed_values("orders") == [b"plain"]
    client.node = again
    assert client.send("orders", b"late") is E.INVALID_PRODUCER_EPOCH
    assert client.end(is_commit=True) is E.PRODUCER_FENCED


def test_a_sweep_that_fails_once_is_repeated() -> None:
    node = transaction_node()
    client = TransactionalClient.begun(node)
    host = node.transactions.host_of("pay")
    looks = 0

    def timed_out(now_ms: int) -> list[str]:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise OSError("the first look fails")
        return ["pay"]

    assert client.write("orders", b"one") is E.NONE
    host.machine.timed_out = timed_out  # type: ignore[method-assign]
    with pytest.raises(OSError, match="first look"):
        node.clock.advance(10_000)
    node.clock.advance(70_000)
    assert node.describe_transaction("pay").transaction_state == "CompleteAbort"


def test_unused_ids_are_deleted_also_from_the_log() -> None:
    files = SimulatedDisk(seed=7)
    node = transaction_node(files)
    client = TransactionalClient.begun(node)
    node.clock.advance(604_800_000 + 3_600_000)
    assert node.describe_transaction("pay").error_code == E.TRANSACTIONAL_ID_NOT_FOUND
    assert client.add("orders") is E.INVALID_PRODUCER_ID_MAPPING
    node.stop()
    again = transaction_node(files, start=2)
    assert again.describe_transaction("pay").error_code == E.TRANSACTIONAL_ID_NOT_FOUND


def test_a_partition_that_is_gone_needs_no_marker() -> None:
    node = transaction_node()
    client = TransactionalClient.begun(node)
    assert client.write("orders", b"one") is E.NONE
    node.submit(delete_topics(TopicReference(name="orders")))
    node.end_turn()
    assert client.end(is_commit=True) is E.NONE
    assert node.describe_transaction("pay").transaction_state == "CompleteCommit"


def test_a_late_batch_cannot_open_a_transaction_without_an_end() -> None:
    """KIP-890."""
    node = transaction_node()
    client = TransactionalClient.begun(node)
    assert client.send("orders", b"never added") is E.TRANSACTION_ABORTABLE
    assert client.write("orders", b"one") is E.NONE
    assert client.end(is_commit=True) is E.NONE
    assert client.send("orders", b"late") is E.TRANSACTION_ABORTABLE
    assert node.committed_values("orders") == [b"one"]


def test_an_unknown_partition_keeps_all_from_being_added() -> None:
    client = TransactionalClient.begun(transaction_node())
    assert client.add("nothing") is E.UNKNOWN_TOPIC_OR_PARTITION
    assert client.add("__consumer_offsets") is E.TOPIC_AUTHORIZATION_FAILED


def test_a_list_shows_open_transactions() -> None:
    node = transaction_node()
    client, _ = TransactionalClient.begun(node, "a"), TransactionalClient.begun(node, "b")
    assert client.write("orders", b"one") is E.NONE

    def listed(*states: str, **filters: object) -> tuple[set[tuple[str, str]], tuple[str, ...]]:
        answer = node.send(ListTransactionsRequest(state_filters=states, **filters), 2).response  # type: ignore[arg-type]
        assert answer.error_code == E.NONE
        found = {(each.transactional_id, each.transaction_state) for each in answer.transaction_states}
        return found, answer.unknown_state_filters

    assert listed() == ({("a", "Ongoing"), ("b", "Empty")}, ())
    assert listed("Ongoing", "Sleeping") == ({("a", "Ongoing")}, ("Sleeping",))
    assert listed("Sleeping") == (set(), ("Sleeping",))
    assert listed(producer_id_filters=(client.producer_id,)) == ({("a", "Ongoing")}, ())
    refused = node.send(ListTransactionsRequest(transactional_id_pattern="a.*"), 2).response
    assert refused.error_code == E.INVALID_REGULAR_EXPRESSION
    described = node.describe_transaction("a")
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("orders", (0,))]
    assert (described.producer_id, described.transaction_timeout_ms) == (client.producer_id, 60_000)


def test_a_node_takes_only_so_many_ids() -> None:
    node = transaction_node(settings={"transaction.max.ids": "2"})
    assert TransactionalClient.begun(node, "a").initialize() is E.NONE
    assert TransactionalClient.begun(node, "b").initialize() is E.NONE
    assert TransactionalClient(node, "c").initialize() is E.INVALID_REQUEST
    assert TransactionalClient(node, "a").initialize() is E.NONE


@versions
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_ends_as_it_was_decided_whichever_write_fails(version: int, is_commit: bool) -> None:
    """A write or sync after EndTxn fails: of the decision, a marker or the completion. A sync ends the process."""
    answers: set[ErrorCode | None] = set()
    for number in range(1, 9):
        files = SimulatedDisk(seed=number)
        node = transaction_node(files)
        client = TransactionalClient.begun(node, version=version)
        for topic in ("orders", "bills"):
            assert client.write(topic, b"one") is E.NONE
        assert client.set_offset(5) is E.NONE
        files.fail_at(files.operations + number)
        code: ErrorCode | None = None
        try:
            code = client.end(is_commit=is_commit)
            node.clock.advance(5_000)
            assert code is not E.NONE or not node.transaction().state.is_prepared, "a marker that fails is tried again"
        except StorageError:
            pass
        answers.add(code)
        lose_power(files)
        again = transaction_node(files, start=2)
        again.clock.advance(5_000)
        if code is not E.NONE:
            client.node = again
            code = client.end(is_commit=is_commit)
            assert code is E.NONE
        assert not again.transaction().state.is_prepared
        expected = [b"one"] if is_commit else []
        assert [again.committed_values(topic) for topic in ("orders", "bills")] == [expected, expected]
        assert again.stable_offset("g", "orders") == (5 if is_commit else -1)
    assert {E.NONE, None, E.NOT_COORDINATOR} == answers
