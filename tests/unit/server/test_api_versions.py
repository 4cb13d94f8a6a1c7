"""SaslHandshake (17) and SaslAuthenticate (36) on a listener without authentication."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.api_versions import SaslAuthenticateRequest, SaslHandshakeRequest
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath


@pytest.fixture
def node() -> DataPath:
    return DataPath("/data", files=SimulatedDisk())


@pytest.mark.parametrize("version", [0, 1])
def test_a_handshake_is_refused_and_no_mechanism_offered(node: DataPath, version: int) -> None:
    response = node.send(SaslHandshakeRequest(mechanism="PLAIN"), version).response
    assert (response.error_code, response.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, ())
    assert node.connection.is_open


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_sasl_token_is_refused_with_the_way_out(node: DataPath, version: int) -> None:
    response = node.send(SaslAuthenticateRequest(auth_bytes=b"\0user\0password"), version).response
    assert (response.error_code, response.auth_bytes) == (ErrorCode.ILLEGAL_SASL_STATE, b"")
    assert "PLAINTEXT" in response.error_message
    assert "password" not in response.error_message
