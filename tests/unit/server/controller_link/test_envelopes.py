"""Requests are put into envelopes, and their answers are read out of the envelopes' answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.headers import decode_request_header, encode_response
from tailrace.protocol.messages.envelope import EnvelopeResponse
from tailrace.protocol.messages.features import UpdateFeaturesRequest, UpdateFeaturesResponse
from tailrace.server.controller_link.envelopes import (
    Client,
    Envelopes,
    Sealed,
    decode_address,
    decode_principal,
    encode_address,
    encode_principal,
)

CLIENT = Client("a-client", 77, "User:alice", "/::1")
ANSWER = UpdateFeaturesResponse(error_message=None, results=())


def seal() -> Sealed:
    return Envelopes(b"one start of one").seal(UpdateFeaturesRequest(feature_updates=()), 1, CLIENT)


def data(correlation_id: int = 77) -> bytes:
    return b"".join(encode_response(ANSWER, 1, correlation_id))


def test_each_request_has_a_number_and_keeps_it_in_every_attempt() -> None:
    envelopes = Envelopes(b"one start of one")
    first, second = (envelopes.seal(UpdateFeaturesRequest(feature_updates=()), 1, CLIENT) for _ in range(2))
    assert first.envelope(3).request_number == first.envelope(4).request_number < second.envelope(3).request_number
    assert (first.envelope(3).leader_epoch, first.envelope(4).leader_epoch) == (3, 4)


def test_a_request_travels_with_its_header_and_its_client() -> None:
    envelope = seal().envelope(3)
    header, _ = decode_request_header(envelope.request_data)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (57, 1, 77, "a-client")
    assert decode_principal(envelope.request_principal) == "User:alice"
    assert decode_address(envelope.client_host_address) == "/::1"


def test_a_request_is_encoded_once_however_often_it_leaves() -> None:
    sealed = seal()
    assert sealed.envelope(3).request_data is sealed.envelope(4).request_data


def test_an_answer_is_read_and_must_be_to_this_request() -> None:
    assert seal().answer(EnvelopeResponse(response_data=data())) == ANSWER
    for broken in (
        EnvelopeResponse(response_data=data(78)),
        EnvelopeResponse(response_data=data()[:-1]),
        EnvelopeResponse(response_data=b""),
        EnvelopeResponse(response_data=None),
        EnvelopeResponse(response_data=data(), error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ):
        with pytest.raises(KafkaError) as fault:
            seal().answer(broken)
        assert fault.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_throttled_client_gets_its_wait() -> None:
    with pytest.raises(KafkaError) as fault:
        seal().answer(EnvelopeResponse(error_code=ErrorCode.REQUEST_TIMED_OUT))
    assert fault.value.code is ErrorCode.REQUEST_TIMED_OUT


def test_a_principal_is_written_as_kafka_writes_its_own() -> None:
    # DefaultKafkaPrincipalBuilder.serialize: the version, then compact strings, a boolean, and a tag section.
    assert encode_principal("User:bob") == b"\0\0" + b"\x05User" + b"\x04bob" + b"\0" + b"\0"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=":")), st.text(st.characters(codec="utf-8")))
def test_every_principal_comes_back(kind: str, name: str) -> None:
    assert decode_principal(encode_principal(f"{kind}:{name}")) == f"{kind}:{name}"


@given(st.ip_addresses())
def test_every_address_comes_back(address: object) -> None:
    assert decode_address(encode_address(f"/{address}")) == f"/{address}"


@pytest.mark.parametrize(
    ("host", "known"), [("", "/127.0.0.1"), ("/fe80::1%eth0", "/fe80::1"), ("/unix", "/127.0.0.1")]
)
def test_an_address_that_cannot_be_told_is_this_machines(host: str, known: str) -> None:
    assert decode_address(encode_address(host)) == known
