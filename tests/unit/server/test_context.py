"""The context of a request: its name in the log, the access of its client, and the way to another handler."""

import pytest

from tailrace.model.access import CLUSTER, Operation, SecuredResource, SecuredType
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.identity import ClientIdentity
from tailrace.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse
from tailrace.server.context import LONGEST_REQUESTED_BY, RequestContext, RequestServices
from tailrace.server.response_errors import ResponseErrors
from tailrace.server.slices import Stepwise
from testkit.nodes.ports import RecordingConnection


def requested_by(client_id: str | None) -> str:
    context = RequestContext(
        connection=RecordingConnection(),
        slot=0,
        api_key=21,
        api_version=2,
        correlation_id=7,
        client_id=client_id,
        services=RequestServices(ResponseErrors()),
    )
    return context.requested_by


def test_a_client_is_named_by_its_address_and_the_name_it_gives_itself() -> None:
    assert requested_by("billing") == "127.0.0.1 billing"
    assert requested_by(None) == "127.0.0.1"


@pytest.mark.parametrize("character", ["x", "\0", "\n-", "\\", "\U0010ffff", "'\"", "é"])
def test_a_long_name_of_a_client_is_cut_as_it_stands_in_a_line(character: str) -> None:
    """A log line has it with its escapes, which are up to ten times as long as the name."""
    text = requested_by(character * (32_767 // len(character)))
    assert text.startswith(f"127.0.0.1 {character}")
    assert text.endswith("...")
    assert LONGEST_REQUESTED_BY - 10 < len(repr(text)) <= LONGEST_REQUESTED_BY


def test_a_name_that_just_fits_is_whole() -> None:
    name = "x" * (LONGEST_REQUESTED_BY - len(repr("127.0.0.1 ")))
    assert requested_by(name) == f"127.0.0.1 {name}"
    assert requested_by(name + "x").endswith("x...")


class ScriptedAuthorizer:
    """Permits reads, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[ClientIdentity, Operation, SecuredResource]] = []
        self.version: object = None
        self.asks_addresses = False

    def permits(self, identity: ClientIdentity, operation: Operation, resource: SecuredResource) -> bool:
        self.asked.append((identity, operation, resource))
        return operation is Operation.READ

    def explain(self, identity: object, operation: Operation, resource: SecuredResource) -> str:
        return ""

    def permits_any(self, identity: ClientIdentity, operation: Operation, kind: SecuredType) -> bool:
        return False


def test_access_is_decided_by_the_authorizer_for_the_identity_of_the_connection() -> None:
    authorizer, connection = ScriptedAuthorizer(), RecordingConnection(principal="User:alice")
    context = RequestContext(connection, 0, 3, 12, 1, "client", RequestServices(ResponseErrors(), None, authorizer))
    assert context.authorize(Operation.READ, CLUSTER)
    assert not context.authorize(Operation.ALTER, CLUSTER)
    assert [identity.principal for identity, *_ in authorizer.asked] == ["User:alice"] * 2


def test_a_node_without_security_permits_everything() -> None:
    context = RequestContext(RecordingConnection(), 0, 3, 12, 1, "client", RequestServices(ResponseErrors()))
    assert all(context.authorize(operation, CLUSTER) for operation in Operation)


def taken_by_another_handler() -> tuple[RequestContext, list[object], RecordingConnection]:
    connection, taken = RecordingConnection(), list[object]()
    context = RequestContext(connection, 0, 3, 12, 1, "client", RequestServices(ResponseErrors()))
    return context.intercepted(taken.append), taken, connection


def test_a_request_context_that_is_passed_on_responds_to_its_first_handler() -> None:
    context, taken, connection = taken_by_another_handler()
    assert (context.identity, context.client_id, context.api_version) == (connection.identity, "client", 12)
    context.respond("response")
    assert taken == ["response"]
    assert connection.answers == {}


def test_a_request_context_gives_a_response_in_steps_to_the_first_handler_when_it_is_whole() -> None:
    def steps() -> Stepwise[str]:
        assert taken == []
        yield
        return "response"

    context, taken, connection = taken_by_another_handler()
    context.respond_in_steps(steps())
    assert taken == ["response"]
    assert connection.answers == {}


def test_a_request_context_keeps_its_identity_when_its_connection_gets_another() -> None:
    connection = RecordingConnection(principal="User:alice")
    context = RequestContext(connection, 0, 3, 12, 1, "client", RequestServices(ResponseErrors()))
    connection.identity = connection.identity._replace(principal="User:bob")
    assert context.identity.principal == "User:alice"


def answered(outcome: object) -> list[object]:
    """The response to DescribeCluster that comes from this outcome of a command."""
    context, taken, _ = taken_by_another_handler()

    def in_steps(found: object) -> Stepwise[object]:
        yield
        return ("in steps", found)

    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    context.answering(request, lambda found: in_steps(found) if found == "long" else ("at once", found))(outcome)
    return taken


def test_the_outcome_of_a_command_becomes_the_response_of_a_request_context() -> None:
    assert answered("short") == [("at once", "short")]
    assert answered("long") == [("in steps", "long")]


def test_a_command_that_is_refused_refuses_the_request() -> None:
    (response,) = answered(KafkaError(ErrorCode.NOT_CONTROLLER, "not here"))
    assert isinstance(response, DescribeClusterResponse)
    assert (response.error_code, response.error_message) == (ErrorCode.NOT_CONTROLLER, "not here")
