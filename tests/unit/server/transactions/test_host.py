"""The transaction coordinators of a node: real partitions, a real metadata log, and a simulated disk."""

from itertools import cycle

import pytest

from tailrace.coordinators.transactions.transaction import Transaction
from tailrace.metadata.commands import TopicReference
from tailrace.model.errors import ErrorCode, StorageError
from tailrace.model.partitions import TRANSACTION_STATE_TOPIC
from tailrace.protocol.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from tailrace.protocol.messages.metadata import MetadataRequest
from tailrace.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    ListTransactionsRequest,
)
from tailrace.server.transactions import next_transactions
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.controller_commands import delete_topics
from testkit.data_path import Exchange
from testkit.ports import HoldingDisk, RecordingConnection
from testkit.transaction_path import TransactionalClient, TransactionPath

E = ErrorCode


def _node(files: SimulatedDisk | None = None, *, start: int = 1, **options: object) -> TransactionPath:
    node = TransactionPath("/data", files=files or SimulatedDisk(seed=1), start=start, **options)  # type: ignore[arg-type]
    if start == 1:
        node.create_topics("orders", "bills")
        assert node.find_coordinator("g") is E.NONE
    return node


def _client(node: TransactionPath, name: str = "pay", *, version: int = 0) -> TransactionalClient:
    client = TransactionalClient(node, name, version=version)
    assert client.initialize() is E.NONE
    return client


def _known(node: TransactionPath, name: str = "pay") -> Transaction:
    return node.transactions.host_of(name).machine.transactions[name]


versions = pytest.mark.parametrize("version", [0, 2])


def _send(client: TransactionalClient, topic: str, *values: bytes) -> ErrorCode:
    if client.version < 2:
        assert client.add(topic) is E.NONE
    return client.send(topic, *values)


def test_the_topic_of_transactions_is_kafkas() -> None:
    node = _node()
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
    node = _node()
    client = _client(node, version=version)
    for number, is_commit in enumerate((True, False, True, False, False, True)):
        for topic in ("orders", "bills"):
            assert _send(client, topic, f"{number}".encode()) is E.NONE
        before = node.committed_values("orders")
        assert client.end(is_commit=is_commit) is E.NONE
        expected = [f"{number}".encode()] if is_commit else []
        for topic in ("orders", "bills"):
            assert node.committed_values(topic) == before + expected
        assert client.initialize() is E.NONE
    assert node.committed_values("orders") == [b"0", b"2", b"5"]


@versions
def test_a_second_instance_fences_the_first_and_aborts_what_it_left(version: int) -> None:
    node = _node()
    first = _client(node, version=version)
    assert _send(first, "orders", b"lost") is E.NONE
    exchange = TransactionalClient(node, "pay").ask_for_identity()
    assert exchange.response.error_code == E.CONCURRENT_TRANSACTIONS
    second = _client(node, version=version)
    assert second.producer_id == first.producer_id
    assert second.producer_epoch > first.producer_epoch
    assert first.add("orders") is E.PRODUCER_FENCED
    assert first.add("orders", version=1) is E.INVALID_PRODUCER_EPOCH
    assert first.send("orders", b"late") is E.INVALID_PRODUCER_EPOCH
    assert first.end(is_commit=True) is E.PRODUCER_FENCED
    assert node.committed_values("orders") == []
    assert _send(second, "orders", b"kept") is E.NONE
    assert second.end(is_commit=True) is E.NONE
    assert node.committed_values("orders") == [b"kept"]


def test_no_decision_is_visible_before_it_is_on_disk() -> None:
    clock = ManualClock()
    disk = HoldingDisk(clock.call_soon)
    node = _node(clock=clock, disk=disk)
    client = _client(node)
    assert _send(client, "orders", b"one") is E.NONE
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
    node = _node(files, clock=clock, disk=disk)
    client = _client(node, version=version)
    for topic in ("orders", "bills"):
        assert _send(client, topic, b"one") is E.NONE
    disk.holds = True
    ending = client.ask_for_end(is_commit=is_commit)
    disk.run()
    assert ending.response.error_code == E.NONE
    assert _known(node).state.is_prepared, "the markers are on their way, and not on disk"
    files.power_cut()
    files.reboot()
    again = _node(files, start=2)
    assert not _known(again).state.is_prepared
    for topic in ("orders", "bills"):
        assert again.committed_values(topic) == ([b"one"] if is_commit else [])
    successor = _client(again, version=version)
    assert _send(successor, "orders", b"two") is E.NONE
    assert successor.end(is_commit=True) is E.NONE
    assert again.committed_values("orders")[-1:] == [b"two"]


@versions
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_completion_that_is_committed_late_is_not_taken_for_the_next_ones(version: int, is_commit: bool) -> None:
    """It took longer than an answer waits, and was to be tried again: by then the next transaction is being ended."""
    clock = ManualClock()
    disk = HoldingDisk(clock.call_soon)
    node = _node(clock=clock, disk=disk)
    client = _client(node, version=version)
    assert _send(client, "orders", b"one") is E.NONE
    disk.holds = True
    ending = client.ask_for_end(is_commit=True)
    for _ in range(2):  # the decision, and the marker
        disk.run()
        node.end_turn()
    clock.advance(5_000)
    assert _known(node).state.is_prepared, "the completion is not on disk yet"
    disk.run()
    disk.holds = False
    node.end_turn()
    assert not _known(node).state.is_prepared
    answer = ending.response
    if version >= 2:
        client.take(answer.producer_id, answer.producer_epoch)
    assert _send(client, "orders", b"two") is E.NONE
    disk.holds = True
    client.ask_for_end(is_commit=is_commit)
    disk.run()
    clock.advance(500)
    assert _known(node).state.is_prepared, "its marker is not on disk"
    disk.holds = False
    disk.run()
    node.end_turn()
    clock.advance(1_000)
    assert not _known(node).state.is_prepared
    assert node.committed_values("orders") == ([b"one", b"two"] if is_commit else [b"one"])
    assert node.produce("orders", b"plain").produced.error_code == E.NONE
    assert node.committed_values("orders")[-1] == b"plain", "no transaction is left open"


def test_an_open_transaction_outlives_a_power_cut_and_times_out_later() -> None:
    files = SimulatedDisk(seed=6)
    node = _node(files)
    client = _client(node)
    assert _send(client, "orders", b"one") is E.NONE
    files.power_cut()
    files.reboot()
    again = _node(files, start=2, clock=node.clock)
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
    node = _node()
    client = _client(node)
    host = node.transactions.host_of("pay")
    looks = 0

    def timed_out(now_ms: int) -> list[str]:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise OSError("the first look fails")
        return ["pay"]

    assert _send(client, "orders", b"one") is E.NONE
    host.machine.timed_out = timed_out  # type: ignore[method-assign]
    with pytest.raises(OSError, match="first look"):
        node.clock.advance(10_000)
    node.clock.advance(70_000)
    assert node.describe_transaction("pay").transaction_state == "CompleteAbort"


def test_unused_ids_are_deleted_also_from_the_log() -> None:
    files = SimulatedDisk(seed=7)
    node = _node(files)
    client = _client(node)
    node.clock.advance(604_800_000 + 3_600_000)
    assert node.describe_transaction("pay").error_code == E.TRANSACTIONAL_ID_NOT_FOUND
    assert client.add("orders") is E.INVALID_PRODUCER_ID_MAPPING
    node.stop()
    again = _node(files, start=2)
    assert again.describe_transaction("pay").error_code == E.TRANSACTIONAL_ID_NOT_FOUND


def test_a_partition_that_is_gone_needs_no_marker() -> None:
    node = _node()
    client = _client(node)
    assert _send(client, "orders", b"one") is E.NONE
    node.submit(delete_topics(TopicReference(name="orders")))
    node.end_turn()
    assert client.end(is_commit=True) is E.NONE
    assert node.describe_transaction("pay").transaction_state == "CompleteCommit"


def test_a_late_batch_cannot_open_a_transaction_without_an_end() -> None:
    """KIP-890."""
    node = _node()
    client = _client(node)
    assert client.send("orders", b"never added") is E.TRANSACTION_ABORTABLE
    assert _send(client, "orders", b"one") is E.NONE
    assert client.end(is_commit=True) is E.NONE
    assert client.send("orders", b"late") is E.TRANSACTION_ABORTABLE
    assert node.committed_values("orders") == [b"one"]


def test_an_unknown_partition_keeps_all_from_being_added() -> None:
    client = _client(_node())
    assert client.add("nothing") is E.UNKNOWN_TOPIC_OR_PARTITION
    assert client.add("__consumer_offsets") is E.TOPIC_AUTHORIZATION_FAILED


def test_a_list_shows_open_transactions() -> None:
    node = _node()
    client, _ = _client(node, "a"), _client(node, "b")
    assert _send(client, "orders", b"one") is E.NONE

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
    node = _node(settings={"transaction.max.ids": "2"})
    assert _client(node, "a").initialize() is E.NONE
    assert _client(node, "b").initialize() is E.NONE
    assert TransactionalClient(node, "c").initialize() is E.INVALID_REQUEST
    assert TransactionalClient(node, "a").initialize() is E.NONE


def _commit_offset(client: TransactionalClient, offset: int, **member: object) -> ErrorCode:
    if client.version < 2:
        assert client.add_offsets("g") is E.NONE
    return client.commit_offset("g", "orders", offset, **member)  # type: ignore[arg-type]


@versions
def test_offsets_count_when_their_transaction_commits(version: int) -> None:
    node = _node()
    client = _client(node, version=version)
    node.commit("g", "orders", 3)
    for offset, is_commit in ((5, False), (6, True)):
        assert _commit_offset(client, offset) is E.NONE
        assert node.committed("g", "orders") == 3, "a fetch that does not ask for stable offsets sees the last one"
        assert node.stable_offset("g", "orders") is E.UNSTABLE_OFFSET_COMMIT
        assert node.stable_offset("g", "bills") == -1
        assert client.end(is_commit=is_commit) is E.NONE
        assert node.stable_offset("g", "orders") == (6 if is_commit else 3)


@versions
@pytest.mark.parametrize("is_verified", ["true", "false"])
@pytest.mark.parametrize(
    ("identity", "code"), [((-1, -1), E.INVALID_PRODUCER_ID_MAPPING), ((7, -1), E.INVALID_PRODUCER_EPOCH)]
)
def test_offsets_of_no_producer_are_not_pending(
    version: int, is_verified: str, identity: tuple[int, int], code: ErrorCode
) -> None:
    """A batch of no producer is no transactional one, so no marker would ever end it."""
    node = _node(settings={"transaction.partition.verification.enable": is_verified})
    client = TransactionalClient(node, "pay", version=version)
    node.find_transaction_coordinator("pay")
    client.take(*identity)
    assert client.commit_offset("g", "orders", 5) is code
    assert node.stable_offset("g", "orders") == -1


@versions
def test_pending_offsets_outlive_a_power_cut(version: int) -> None:
    files = SimulatedDisk(seed=8)
    node = _node(files)
    client = _client(node, version=version)
    assert _commit_offset(client, 5) is E.NONE
    files.power_cut()
    files.reboot()
    client.node = node = _node(files, start=2)
    assert node.stable_offset("g", "orders") is E.UNSTABLE_OFFSET_COMMIT
    assert client.end(is_commit=True) is E.NONE
    assert node.stable_offset("g", "orders") == 5
    files.power_cut()
    files.reboot()
    assert _node(files, start=3).stable_offset("g", "orders") == 5


def test_a_plain_commit_in_the_middle_of_a_transaction_stays() -> None:
    node = _node()
    client = _client(node)
    assert _commit_offset(client, 5) is E.NONE
    node.commit("g", "orders", 7)
    assert client.end(is_commit=True) is E.NONE
    assert node.stable_offset("g", "orders") == 7


@versions
def test_offsets_of_a_deleted_topic_do_not_come_back_with_their_transaction(version: int) -> None:
    files = SimulatedDisk(seed=9)
    node = _node(files)
    client = _client(node, version=version)
    assert _commit_offset(client, 5) is E.NONE
    node.submit(delete_topics(TopicReference(name="orders")))
    node.end_turn()
    node.create_topics("orders")
    assert node.stable_offset("g", "orders") == -1
    assert client.end(is_commit=True) is E.NONE
    assert node.committed("g", "orders") == -1
    files.power_cut()
    files.reboot()
    assert _node(files, start=2).committed("g", "orders") == -1


def test_a_topic_may_be_deleted_during_the_verification() -> None:
    clock = ManualClock()
    disk = HoldingDisk(clock.call_soon)
    node = _node(clock=clock, disk=disk)
    client = _client(node, version=2)
    disk.holds = True
    exchange = client.ask_for_offset("g", "orders", 5)
    disk.holds = False
    node.submit(delete_topics(TopicReference(name="orders")))
    node.end_turn()
    assert not exchange.is_answered
    disk.run()
    node.end_turn()
    assert exchange.response.topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    node.create_topics("orders")
    assert client.end(is_commit=True) is E.NONE
    assert node.committed("g", "orders") == -1


@versions
def test_a_deleted_group_does_not_come_back_with_a_transaction(version: int) -> None:
    files = SimulatedDisk(seed=10)
    node = _node(files)
    client = _client(node, version=version)
    node.commit("g", "orders", 3)
    assert _commit_offset(client, 5) is E.NONE
    (deleted,) = node.send(DeleteGroupsRequest(groups_names=("g",)), 2).response.results
    assert deleted.error_code == E.NONE
    assert node.send(ListGroupsRequest(), 5).response.groups == ()
    assert client.end(is_commit=True) is E.NONE
    assert node.send(ListGroupsRequest(), 5).response.groups == ()
    files.power_cut()
    files.reboot()
    again = _node(files, start=2)
    assert again.committed("g", "orders") == -1
    assert again.send(ListGroupsRequest(), 5).response.groups == ()


def test_offsets_of_a_stranger_or_of_a_former_producer_are_refused() -> None:
    node = _node()
    client = _client(node)
    member_id, generation_id = node.form_group("g")
    assert _commit_offset(client, 5, member_id=member_id, generation_id=generation_id) is E.NONE
    assert _commit_offset(client, 6, member_id=member_id, generation_id=generation_id + 1) is E.ILLEGAL_GENERATION
    assert _commit_offset(client, 6, member_id="nobody", generation_id=generation_id) is E.UNKNOWN_MEMBER_ID
    assert _client(node).end(is_commit=True) is E.INVALID_TXN_STATE
    assert client.commit_offset("g", "orders", 6) is E.INVALID_PRODUCER_EPOCH
    assert client.commit_offset("g", "nothing", 6) is E.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_of_a_transaction_that_is_over_open_no_other() -> None:
    """KIP-890."""
    node = _node()
    client = _client(node)
    assert client.commit_offset("g", "orders", 5) is E.TRANSACTION_ABORTABLE
    assert _commit_offset(client, 5) is E.NONE
    assert client.end(is_commit=False) is E.NONE
    assert client.commit_offset("g", "orders", 6) is E.TRANSACTION_ABORTABLE
    assert node.stable_offset("g", "orders") == -1


def test_the_next_transaction_waits_for_the_markers_of_the_last() -> None:
    """KIP-890: its producer does not."""
    clock = ManualClock()
    disk = HoldingDisk(clock.call_soon)
    node = _node(clock=clock, disk=disk)
    client = _client(node, version=2)
    assert _send(client, "orders", b"one") is E.NONE
    assert _commit_offset(client, 1) is E.NONE
    disk.holds = True
    ending = client.ask_for_end(is_commit=True)
    disk.run()
    node.end_turn()
    client.take(ending.response.producer_id, ending.response.producer_epoch)
    produced, committed = client.ask_to_write("orders", b"two"), client.ask_for_offset("g", "orders", 2)
    assert not produced.is_answered
    assert not committed.is_answered
    for _ in range(12):
        disk.run()
        node.end_turn()
        clock.advance(20)
    assert produced.produced.error_code == E.NONE
    assert committed.response.topics[0].partitions[0].error_code == E.NONE
    assert node.committed_values("orders") == [b"one"]
    disk.holds = False
    assert client.end(is_commit=True) is E.NONE
    assert node.committed_values("orders") == [b"one", b"two"]
    assert node.stable_offset("g", "orders") == 2


@versions
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_ends_as_it_was_decided_whichever_write_fails(version: int, is_commit: bool) -> None:
    """One write or sync after EndTxn fails: of the decision, a marker or the completion. A sync ends the process."""
    answers: set[ErrorCode | None] = set()
    for number in range(1, 9):
        files = SimulatedDisk(seed=number)
        node = _node(files)
        client = _client(node, version=version)
        for topic in ("orders", "bills"):
            assert _send(client, topic, b"one") is E.NONE
        assert _commit_offset(client, 5) is E.NONE
        files.fail_at(files.operations + number)
        code: ErrorCode | None = None
        try:
            code = client.end(is_commit=is_commit)
            node.clock.advance(5_000)
            assert code is not E.NONE or not _known(node).state.is_prepared, "a marker that fails is tried again"
        except StorageError:
            pass
        answers.add(code)
        files.power_cut()
        files.reboot()
        again = _node(files, start=2)
        again.clock.advance(5_000)
        if code is not E.NONE:
            client.node = again
            code = client.end(is_commit=is_commit)
            assert code is E.NONE
        assert not _known(again).state.is_prepared
        expected = [b"one"] if is_commit else []
        assert [again.committed_values(topic) for topic in ("orders", "bills")] == [expected, expected]
        assert again.stable_offset("g", "orders") == (5 if is_commit else -1)
    assert {E.NONE, None, E.NOT_COORDINATOR} == answers


def _ending(*, version: int = 0) -> tuple[TransactionalClient, HoldingDisk]:
    """A producer with the answer that its transaction is committed, and whose markers wait for the disk."""
    clock = ManualClock()
    disk = HoldingDisk(clock.call_soon)
    client = _client(_node(clock=clock, disk=disk), version=version)
    assert _send(client, "orders", b"one") is E.NONE
    disk.holds = True
    answer = client.ask_for_end(is_commit=True)
    disk.run()
    assert answer.response.error_code == E.NONE
    assert _known(client.node).state.is_prepared
    if version >= 2:
        client.take(answer.response.producer_id, answer.response.producer_epoch)
    return client, disk


def _added(exchange: Exchange) -> ErrorCode:
    ((result,),) = (topic.results_by_partition for topic in exchange.response.results_by_topic_v3_and_below)
    return ErrorCode(result.partition_error_code)


def _ask_for(
    client: TransactionalClient, topics: dict[str, tuple[int, ...]], *, connection: RecordingConnection | None = None
) -> Exchange:
    """AddPartitionsToTxn, as a producer sends it."""
    request = AddPartitionsToTxnRequest(
        transactions=(),
        v3_and_below_transactional_id=client.transactional_id,
        v3_and_below_producer_id=client.producer_id,
        v3_and_below_producer_epoch=client.producer_epoch,
        v3_and_below_topics=tuple(AddPartitionsToTxnTopic(name=name, partitions=them) for name, them in topics.items()),
    )
    return client.node.send(request, 3, connection=connection)


def test_a_view_is_in_no_transaction() -> None:
    client, _ = _ending()
    assert "orders" in client.node.controller.image.topics
    assert _added(_ask_for(client, {"orders.shared-4": (0,)})) is E.INVALID_TOPIC_EXCEPTION
    assert _added(_ask_for(client, {"missing.shared-4": (0,)})) is E.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(("limit", "most"), [("MAX_WAITING", 1), ("MAX_PARTITIONS", 1), ("MAX_OF_ID", 1)])
def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    monkeypatch.setattr(next_transactions, limit, most)
    client, disk = _ending()
    waiting = client.ask_to_add("bills")
    assert not waiting.is_answered
    assert client.add("bills") is E.CONCURRENT_TRANSACTIONS
    disk.holds = False
    disk.run()
    client.node.end_turn()
    assert _added(waiting) is E.NONE
    disk.holds = True
    assert client.add("bills") is E.NONE


def test_a_partition_that_a_waiting_request_names_again_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_transactions, "MAX_PARTITIONS", 2, raising=False)
    client, _ = _ending()
    answer = _ask_for(client, {"bills": (0, 0, 0)}).response
    codes = [
        each.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]
    assert codes == [E.CONCURRENT_TRANSACTIONS] * 3


def test_a_topic_without_partitions_is_in_the_answer() -> None:
    """Kafka's answer has it too."""
    client = _client(_node())
    answer = _ask_for(client, {"orders": (), "bills": (0,)}).response
    found = {each.name: len(each.results_by_partition) for each in answer.results_by_topic_v3_and_below}
    assert found == {"orders": 0, "bills": 1}


def test_the_name_of_a_topic_without_partitions_counts_while_its_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing checks it, and it may be as long as a string: 30,000 characters are 150 partitions."""
    monkeypatch.setattr(next_transactions, "MAX_PARTITIONS", 150)
    client, _ = _ending()
    for name, waits in (("x" * 30_000, False), ("x" * 29_000, True)):
        assert _ask_for(client, {name: (), "bills": (0,)}).is_answered is not waits


def test_a_producer_has_two_requests_that_wait_and_no_more() -> None:
    client, _ = _ending()
    waiting = [client.ask_to_add("bills"), client.ask_to_add_offsets("g")]
    assert client.add("bills") is E.CONCURRENT_TRANSACTIONS
    assert not any(each.is_answered for each in waiting)


def test_a_request_ends_with_its_connection() -> None:
    """It no longer counts as waiting, and its partitions stay out of the next transaction."""
    client, disk = _ending()
    connection = RecordingConnection()
    for _ in range(2):
        assert not _ask_for(client, {"bills": (0,)}, connection=connection).is_answered
    assert connection.callbacks == 1
    connection.hang_up()
    added = client.ask_to_add("orders")
    disk.holds = False
    disk.run()
    client.node.end_turn()
    assert _added(added) is E.NONE
    assert {each.topic for each in _known(client.node).partitions} == {"orders"}
    assert connection.answers == {}


def test_waiting_requests_go_on_after_a_failed_write() -> None:
    """A partition resigns when its disk stands still; the image that tells its coordinator may be late."""
    clock = ManualClock()
    disk = HoldingDisk(clock.call_soon)
    client = _client(_node(clock=clock, disk=disk))
    assert _send(client, "orders", b"one") is E.NONE
    disk.holds = True
    decided, added = client.ask_for_end(is_commit=True), client.ask_to_add("bills")
    assert not added.is_answered
    client.node.transactions.host_of("pay").partition.step_down()
    clock.advance(0)
    assert decided.response.error_code == E.NOT_COORDINATOR
    assert added.is_answered, "it would wait for some seconds"
    assert _added(added) is E.NOT_COORDINATOR


class TestTheNextTransaction:
    """Requests of a producer before the markers of its last transaction are written."""

    def test_its_partitions_are_added_when_the_last_one_is_complete(self) -> None:
        """An EndTxn meanwhile never gets INVALID_TXN_STATE (48): librdkafka would give up."""
        client, disk = _ending()
        added, offsets, ends = client.ask_to_add("bills"), client.ask_to_add_offsets("g"), set()
        steps = cycle((disk.run, client.node.end_turn))
        while not (added.is_answered and offsets.is_answered):
            ends.add(client.ask_for_end(is_commit=False).response.error_code)
            next(steps)()
        assert ends == {E.CONCURRENT_TRANSACTIONS}
        assert (_added(added), offsets.response.error_code) == (E.NONE, E.NONE)
        assert {each.topic for each in _known(client.node).partitions} == {"bills", "__consumer_offsets"}
        disk.holds = False
        assert client.end(is_commit=False) is E.NONE
        assert client.node.describe_transaction("pay").transaction_state == "CompleteAbort"
        assert client.node.committed_values("orders") == [b"one"]

    def test_an_abort_right_behind_a_commit_is_done_when_that_is_complete(self) -> None:
        """KAFKA-18464: Java's producer would have to be closed after any other code."""
        client, disk = _ending(version=2)
        abort = client.ask_for_end(is_commit=False).response
        while abort.error_code == E.CONCURRENT_TRANSACTIONS:
            disk.run()
            client.node.end_turn()
            exchange = client.ask_for_end(is_commit=False)
            disk.run()
            abort = exchange.response
        assert (abort.error_code, abort.producer_epoch) == (E.NONE, client.producer_epoch + 1)
        disk.holds = False
        disk.run()
        client.node.end_turn()
        assert client.node.committed_values("orders") == [b"one"]

    @versions
    def test_its_offsets_are_to_come_again(self, version: int) -> None:
        """Kafka's code in every version, and one that every client repeats."""
        client, _ = _ending(version=version)
        offsets = client.ask_for_offset("g", "orders", 7)
        client.node.clock.advance(2_000)
        ((partition,),) = (topic.partitions for topic in offsets.response.topics)
        assert partition.error_code == E.CONCURRENT_TRANSACTIONS

    def test_a_request_waits_for_some_seconds(self) -> None:
        client, _ = _ending()
        added = client.ask_to_add("bills")
        client.node.clock.advance(next_transactions.WAIT_MS - 1)
        assert not added.is_answered
        client.node.clock.advance(1)
        assert _added(added) is E.CONCURRENT_TRANSACTIONS

    def test_a_broker_that_asks_is_answered_at_once(self) -> None:
        """The peer asks again by itself, and its requests for other producers must not wait behind this one."""
        client, _ = _ending(version=2)
        (result,) = client.ask_to_add("bills", version=5).response.results_by_transaction
        ((partition,),) = (topic.results_by_partition for topic in result.topic_results)
        assert partition.partition_error_code == E.CONCURRENT_TRANSACTIONS

    def test_another_producer_is_refused_at_once(self) -> None:
        client, _ = _ending()
        client.producer_epoch -= 1
        assert client.add("bills") is E.PRODUCER_FENCED
        client.producer_id += 1
        assert client.add("bills") is E.INVALID_PRODUCER_ID_MAPPING

    def test_a_coordinator_that_is_closed_tells_those_that_wait(self) -> None:
        client, _ = _ending()
        waiting = [client.ask_to_add("bills"), client.ask_to_add("orders")]
        client.node.transactions.close()
        assert [_added(each) for each in waiting] == [E.NOT_COORDINATOR, E.NOT_COORDINATOR]
