import kafka.protocol.metadata
import pytest

from tailrace.model.errors import MalformedMessage
from tailrace.protocol.headers import decode_response, encode_request, encode_response, frame_prefix
from tailrace.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.messages.membership import HeartbeatRequest, HeartbeatResponse
from tailrace.protocol.request_headers import RequestHeader, decode_request_header
from tailrace.protocol.schema import decode

BEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("client_id", ["me", "", None])
def test_a_request_survives_with_its_header(version: int, client_id: str | None) -> None:
    frame = b"".join(encode_request(BEAT, version, 42, client_id))
    header, position = decode_request_header(memoryview(frame))
    assert header == RequestHeader(12, version, 42, client_id)
    assert decode(HeartbeatRequest, version, frame, position) == BEAT


def test_the_header_of_a_flexible_request_has_a_tag_section() -> None:
    assert b"".join(encode_request(BEAT, 3, 1, "c"))[:11] == bytes.fromhex("000c 0003 00000001 0001 63")
    assert b"".join(encode_request(BEAT, 4, 1, "c"))[:12] == bytes.fromhex("000c 0004 00000001 0001 63 00")


def test_tagged_fields_in_a_request_header_are_skipped() -> None:
    frame = bytes.fromhex("000c 0004 00000001 ffff 02 05 01 aa 07 00") + b"body"
    assert decode_request_header(frame) == (RequestHeader(12, 4, 1, None), 16)


def test_an_unknown_api_is_read_far_enough_to_refuse_it() -> None:
    assert decode_request_header(bytes.fromhex("7d00 0063 00000009 0001 78 00"))[0] == RequestHeader(32000, 99, 9, "x")


def test_api_versions_of_the_future_has_a_flexible_header() -> None:
    assert decode_request_header(bytes.fromhex("0012 0063 00000009 0001 78 00 aa")) == (
        RequestHeader(18, 99, 9, "x"),
        12,
    )


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "000c",
        "000c 0004 00000001 0005 61",
        "000c 0004 00000001 fffe",
        "000c 0000 00000001 0001 ff",
        "000c 0004 00000001 ffff",
    ],
)
def test_a_header_that_is_cut_or_wrong_is_malformed(frame: str) -> None:
    with pytest.raises(MalformedMessage):
        decode_request_header(bytes.fromhex(frame))


@pytest.mark.parametrize(("version", "header"), [(3, "0000002a"), (4, "0000002a 00")])
def test_a_response_survives_with_its_header(version: int, header: str) -> None:
    response = HeartbeatResponse(error_code=27)
    frame = b"".join(encode_response(response, version, 42))
    assert frame.startswith(bytes.fromhex(header))
    assert decode_response(HeartbeatResponse, version, frame) == (42, response)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_answers_without_a_tag_section_in_the_header(version: int) -> None:
    response = ApiVersionsResponse(api_keys=(ApiVersion(api_key=18, min_version=0, max_version=4),))
    frame = b"".join(encode_response(response, version, 42))
    assert frame[:6] == bytes.fromhex("0000002a 0000")
    assert decode_response(ApiVersionsResponse, version, frame) == (42, response)
    foreign = kafka.protocol.metadata.ApiVersionsResponse.decode(frame, version=version, header=True)
    assert [key.api_key for key in foreign.api_keys] == [18]


@pytest.mark.parametrize("version", range(5))
def test_a_foreign_client_s_api_versions_request_is_understood(version: int) -> None:
    foreign = kafka.protocol.metadata.ApiVersionsRequest(
        version=version, client_software_name="n", client_software_version="v"
    )
    foreign.with_header(correlation_id=5, client_id="c")
    frame = foreign.encode(header=True)
    header, position = decode_request_header(frame)
    assert header == RequestHeader(18, version, 5, "c")
    name = "n" if version >= 3 else ""
    assert decode(ApiVersionsRequest, version, frame, position).client_software_name == name


@pytest.mark.parametrize("frame", ["", "000000", "0000002a", "0000002a 00"])
def test_a_response_that_is_cut_is_malformed(frame: str) -> None:
    with pytest.raises(MalformedMessage):
        decode_response(HeartbeatResponse, 4, bytes.fromhex(frame))


def test_the_length_prefix_of_a_frame_counts_all_chunks() -> None:
    assert frame_prefix([b"abc", bytearray(4), memoryview(b"x")]) == b"\0\0\0\x08"
