"""InitProducerId (22)."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.group_path import GroupPath
from testkit.nodes.ports import DeferredDisk

ASK = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60000)


def ask(node: GroupPath, request: InitProducerIdRequest = ASK, version: int = 5) -> InitProducerIdResponse:
    response = node.send(request, version).response
    assert isinstance(response, InitProducerIdResponse)
    return response


@pytest.mark.parametrize("version", range(6))
def test_a_producer_gets_a_fresh_id_and_epoch_0(version: int) -> None:
    node = GroupPath("/data", files=SimulatedDisk())
    first, second = ask(node, version=version), ask(node, version=version)
    assert (first.error_code, first.producer_id, first.producer_epoch) == (0, 0, 0)
    assert (second.producer_id, second.producer_epoch) == (1, 0)


def test_no_producer_id_is_given_twice_even_after_a_restart() -> None:
    files = SimulatedDisk()
    node = GroupPath("/data", files=files)
    given = [ask(node).producer_id for _ in range(2500)]
    node.stop()
    given += [ask(GroupPath("/data", files=files, start=2)).producer_id for _ in range(1)]
    assert len(set(given)) == len(given)
    assert given[:2500] == list(range(2500))
    assert given[2500] >= 2500


def test_the_next_block_of_producer_ids_is_there_before_the_last_is_used_up() -> None:
    disk = DeferredDisk()
    node = GroupPath("/data", files=SimulatedDisk(), disk=disk)
    while not node.is_ready:
        disk.run()
    waiting = node.send(ASK, 5)
    assert not waiting.is_answered
    disk.run()
    for expected in range(1, 901):
        assert ask(node).producer_id == expected
    assert disk.works, "a tenth of the block is left"
    disk.run()
    assert [ask(node).producer_id for _ in range(200)] == list(range(901, 1101))


def test_producers_that_wait_for_a_block_are_served_in_order() -> None:
    disk = DeferredDisk()
    node = GroupPath("/data", files=SimulatedDisk(), disk=disk)
    while not node.is_ready:
        disk.run()
    waiting = [node.send(ASK, 5) for _ in range(3)]
    disk.run()
    assert [exchange.response.producer_id for exchange in waiting] == [0, 1, 2]


def test_a_block_that_cannot_be_had_is_a_reason_to_try_again() -> None:
    files = SimulatedDisk()
    node = GroupPath("/data", files=files)
    files.fail_at(files.operations + 1)
    response = ask(node)
    assert ErrorCode(response.error_code).retriable
    assert (response.producer_id, response.producer_epoch) == (-1, -1)


def test_an_idempotent_producer_that_lost_its_place_gets_another_id() -> None:
    node = GroupPath("/data", files=SimulatedDisk())
    ask(node)
    again = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1, producer_id=0, producer_epoch=3)
    response = ask(node, again)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (0, 1, 0)


@pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 5)])
def test_half_an_identity_is_refused(producer_id: int, epoch: int) -> None:
    node = GroupPath("/data", files=SimulatedDisk())
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=1, producer_id=producer_id, producer_epoch=epoch
    )
    assert ask(node, request).error_code == ErrorCode.INVALID_REQUEST


def test_an_empty_transactional_id_is_refused() -> None:
    node = GroupPath("/data", files=SimulatedDisk())
    response = ask(node, InitProducerIdRequest(transactional_id="", transaction_timeout_ms=60000))
    assert (response.error_code, response.producer_id) == (ErrorCode.INVALID_REQUEST, -1)


def test_a_transactional_id_without_a_coordinator_here_is_sent_elsewhere() -> None:
    node = GroupPath("/data", files=SimulatedDisk())
    response = ask(node, InitProducerIdRequest(transactional_id="payments", transaction_timeout_ms=60000))
    assert (response.error_code, response.producer_id) == (ErrorCode.NOT_COORDINATOR, -1)
