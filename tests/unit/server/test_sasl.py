"""SaslHandshake (17) and SaslAuthenticate (36) where nobody is asked who they are."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tailrace.server.dispatch import Dispatcher
from tailrace.server.sasl import NoSaslHandler
from tailrace.testing.disk import SimulatedDisk
from testkit.data_path import DataPath


@pytest.fixture
def node() -> DataPath:
    node = DataPath("/data", files=SimulatedDisk())
    handler = NoSaslHandler()

    def broken(fault: BaseException) -> None:
        raise fault

    node.dispatcher = Dispatcher(
        {17: handler, 36: handler}, write_staged=node.table.write_staged, on_broken_invariant=broken
    )
    return node


@pytest.mark.parametrize("version", [0, 1])
def test_a_handshake_is_refused_and_no_mechanism_offered(node: DataPath, version: int) -> None:
    response = node.send(SaslHandshakeRequest(mechanism="PLAIN"), version).response
    assert (response.error_code, response.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, ())
    assert node.connection.is_open


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_token_is_refused_with_the_way_out(node: DataPath, version: int) -> None:
    response = node.send(SaslAuthenticateRequest(auth_bytes=b"\0user\0password"), version).response
    assert (response.error_code, response.auth_bytes) == (ErrorCode.ILLEGAL_SASL_STATE, b"")
    assert "PLAINTEXT" in response.error_message
    assert "password" not in response.error_message
