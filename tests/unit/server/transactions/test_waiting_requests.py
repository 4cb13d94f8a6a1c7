"""Requests of producers that wait for the end of their last transaction, on a node."""

from itertools import cycle

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from tailrace.server.transactions import next_transactions
from tailrace.testing.clock import ManualClock
from testkit.coordinators.transaction_path import TransactionalClient, transaction_node
from testkit.nodes.data_path import Exchange
from testkit.nodes.ports import HoldingDisk, RecordingConnection

E = ErrorCode
versions = pytest.mark.parametrize("version", [0, 2])


def test_the_next_transaction_waits_for_the_markers_of_the_last() -> None:
    """KIP-890: its producer does not."""
    clock = ManualClock()
    disk = HoldingDisk(clock.call_soon)
    node = transaction_node(clock=clock, disk=disk)
    client = TransactionalClient.begun(node, version=2)
    assert client.write("orders", b"one") is E.NONE
    assert client.set_offset(1) is E.NONE
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


def _ending(*, version: int = 0) -> tuple[TransactionalClient, HoldingDisk]:
    """A producer with the answer that its transaction is committed, and whose markers wait for the disk."""
    clock = ManualClock()
    disk = HoldingDisk(clock.call_soon)
    client = TransactionalClient.begun(transaction_node(clock=clock, disk=disk), version=version)
    assert client.write("orders", b"one") is E.NONE
    disk.holds = True
    answer = client.ask_for_end(is_commit=True)
    disk.run()
    assert answer.response.error_code == E.NONE
    assert client.node.transaction().state.is_prepared
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
    client = TransactionalClient.begun(transaction_node())
    answer = _ask_for(client, {"orders": (), "bills": (0,)}).response
    found = {each.name: len(each.results_by_partition) for each in answer.results_by_topic_v3_and_below}
    assert found == {"orders": 0, "bills": 1}


def test_the_name_of_a_topic_without_partitions_counts_while_its_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing checks the name, which may be as long as a string: 30,000 characters are 150 partitions."""
    monkeypatch.setattr(next_transactions, "MAX_PARTITIONS", 150)
    client, _ = _ending()
    for name, waits in (("x" * 30_000, False), ("x" * 29_000, True)):
        assert _ask_for(client, {name: (), "bills": (0,)}).is_answered is not waits


def test_a_producer_has_two_requests_that_wait_and_no_more() -> None:
    client, _ = _ending()
    waiting = [client.ask_to_add("bills"), client.ask_to_add_offsets("g")]
    assert client.add("bills") is E.CONCURRENT_TRANSACTIONS
    assert not any(each.is_answered for each in waiting)


def test_a_request_that_waits_for_a_transaction_ends_with_its_connection() -> None:
    """The request no longer counts as waiting, and its partitions stay out of the next transaction."""
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
    assert {each.topic for each in client.node.transaction().partitions} == {"orders"}
    assert connection.answers == {}


def test_waiting_requests_go_on_after_a_failed_write() -> None:
    """A partition resigns when its disk stands still; the image that tells its coordinator may be late."""
    clock = ManualClock()
    disk = HoldingDisk(clock.call_soon)
    client = TransactionalClient.begun(transaction_node(clock=clock, disk=disk))
    assert client.write("orders", b"one") is E.NONE
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
        assert {each.topic for each in client.node.transaction().partitions} == {"bills", "__consumer_offsets"}
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
        """Kafka's code in every version, and a code after which every client tries again."""
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
        """The peer asks again by itself, and its requests for other producers must not wait behind this request."""
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
