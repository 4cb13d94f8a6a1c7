"""Access on the listener of controllers: only a peer may send envelopes, and the client in an envelope has its own
rights (KIP-590)."""

from typing import Any

import pytest

from tailrace.model.access import CLUSTER, Operation, SecuredType
from tailrace.model.errors import ErrorCode
from tailrace.model.identity import ClientIdentity
from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.messages.envelope import EnvelopeRequest
from tailrace.protocol.messages.fetch import FetchRequest, FetchResponse
from tailrace.protocol.messages.metadata import DescribeClusterRequest
from tailrace.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tailrace.protocol.registry import APIS, api_of
from tailrace.server.controller_link.envelopes import SENDER, encode_address, encode_principal
from testkit.coordinators.secured_path import ADMIN, SecuredPath
from testkit.nodes.ports import RecordingConnection

PEER, ALICE = "User:peer", "User:alice"
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.fixture
def node() -> SecuredPath:
    node = SecuredPath()
    node.allow(PEER, Operation.CLUSTER_ACTION, SecuredType.CLUSTER, CLUSTER.name)
    return node


def ask_controller(node: SecuredPath, principal: str, request: Any, version: int) -> Any:
    """The answer of the listener of controllers."""
    connection = RecordingConnection(principal=principal, listener="CONTROLLER")
    slot = connection.next_slot()
    frame = b"".join(encode_request(request, version, correlation_id=7, client_id="test"))
    node.apis.dispatcher.on_frame(connection, slot, memoryview(frame))
    node.end_turn()
    answer = connection.answers[slot]
    assert answer is not None
    return decode_response(APIS[api_of(type(request)).key].response, version, answer)[1]


def pass_on(node: SecuredPath, sender: str, client: str) -> tuple[int, int | None]:
    """The error of an envelope with the creation of a topic, and the error of the topic."""
    topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1, assignments=(), configs=())
    request = CreateTopicsRequest(topics=(topic,))
    envelope = EnvelopeRequest(
        request_data=b"".join(encode_request(request, 7, correlation_id=5, client_id="test")),
        request_principal=encode_principal(client),
        client_host_address=encode_address("10.0.0.1"),
    )
    answer = ask_controller(node, sender, envelope, 0)
    if answer.error_code or answer.response_data is None:
        return answer.error_code, None
    return 0, decode_response(CreateTopicsResponse, 7, answer.response_data)[1].topics[0].error_code


@pytest.mark.parametrize("client", [ADMIN, ALICE, "User:mallory"])
def test_a_client_cannot_send_an_envelope_in_the_name_of_another_client(node: SecuredPath, client: str) -> None:
    node.allow(ALICE, Operation.CREATE, SecuredType.TOPIC, "new")
    assert pass_on(node, "User:mallory", client) == (REFUSED, None)
    assert "new" not in node.controller.image.topics


def test_the_client_in_an_envelope_needs_its_own_rights(node: SecuredPath) -> None:
    assert pass_on(node, PEER, ALICE) == (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert pass_on(node, PEER, PEER) == (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert "new" not in node.controller.image.topics
    node.allow(ALICE, Operation.CREATE, SecuredType.TOPIC, "new", host="10.0.0.1")
    assert pass_on(node, PEER, ALICE) == (0, 0)


def test_an_envelope_of_the_sender_itself_has_the_rights_of_the_sender(node: SecuredPath) -> None:
    """A broker creates internal topics, whose clients may not create topics."""
    assert pass_on(node, PEER, SENDER.principal) == (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert pass_on(node, "User:mallory", SENDER.principal) == (REFUSED, None)
    assert pass_on(node, ADMIN, SENDER.principal) == (0, 0)


def test_only_a_peer_fetches_the_metadata_log(node: SecuredPath) -> None:
    node.allow(ALICE, Operation.READ, SecuredType.TOPIC, "*")
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=())
    refused: FetchResponse = ask_controller(node, ALICE, request, 17)
    assert refused.error_code == REFUSED
    answer: FetchResponse = ask_controller(node, PEER, request, 17)
    assert answer.error_code != REFUSED


def test_the_controllers_are_shown_to_clients_that_may_alter_the_cluster(node: SecuredPath) -> None:
    request = DescribeClusterRequest(endpoint_type=2, include_cluster_authorized_operations=False)
    refused = ask_controller(node, ALICE, request, 2)
    assert (refused.error_code, refused.brokers) == (REFUSED, ())
    node.allow(ALICE, Operation.ALTER, SecuredType.CLUSTER, CLUSTER.name)
    assert ask_controller(node, ALICE, request, 2).error_code == 0


def test_a_passed_on_request_keeps_the_identity_it_came_with(node: SecuredPath) -> None:
    """An authentication that comes later does not raise the rights of a request under way."""
    connection = node.connection_of(ALICE)
    topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1, assignments=(), configs=())
    exchange = node.send(CreateTopicsRequest(topics=(topic,)), 7, connection=connection, same_turn=True)
    connection.identity = ClientIdentity("PLAINTEXT", "127.0.0.1", ADMIN)
    node.end_turn()
    assert exchange.response.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
