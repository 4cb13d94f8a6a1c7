"""The wire: frames, requests, responses."""

import struct
from collections.abc import Iterator
from typing import Any

from fuzz import golden
from fuzz.examples import examples
from fuzz.finding import found
from fuzz.targets.inbound import frames_of_the_listener
from fuzz.targets.target import Target
from tailrace.model.errors import MalformedMessage
from tailrace.protocol.headers import decode_response, encode_request, encode_response
from tailrace.protocol.registry import APIS, api_of
from tailrace.protocol.request_headers import decode_request_header
from tailrace.protocol.schema import decode, encode_bytes
from testkit.records.framing import FrameSplitter

MAX_FRAME = 2_000
_CORRELATION_ID = 5


def check_framing(data: bytes) -> None:
    """The first two bytes say into which pieces the stream is cut."""
    if len(data) < 3:
        return
    step, stream = 1 + data[0] % 64, data[2:]
    whole, whole_fault = _split([stream])
    pieces, fault = _split([stream[at : at + step] for at in range(0, len(stream), step)])
    if (pieces, fault) != (whole, whole_fault):
        found("the same frames, however the bytes arrive")
    at_once, was_closed = frames_of_the_listener(stream, [len(stream)], MAX_FRAME)
    one_by_one, was_closed_too = frames_of_the_listener(stream, [step, 1 + data[1] % 200], MAX_FRAME)
    if (at_once, was_closed) != (one_by_one, was_closed_too):
        found("the listener sees the same frames, however the bytes arrive")


def _split(pieces: list[bytes]) -> tuple[list[bytes], bool]:
    splitter = FrameSplitter(max_bytes=MAX_FRAME)
    frames: list[bytes] = []
    for piece in pieces:
        try:
            frames += splitter.feed(piece)
        except MalformedMessage:
            # A splitter that has refused is done; frames before the fault in the same piece went with the fault.
            return _whole_frames_before_the_fault(b"".join(pieces)), True
        if splitter.buffered_bytes > MAX_FRAME + 4:
            found("no more is kept than one frame")
    return frames, False


def _whole_frames_before_the_fault(stream: bytes) -> list[bytes]:
    frames, at = [], 0
    while len(stream) - at >= 4:
        (size,) = struct.unpack_from(">i", stream, at)
        if not 0 <= size <= MAX_FRAME:
            break
        frames.append(stream[at + 4 : at + 4 + size])
        at += 4 + size
    return frames


def _frame_seeds() -> Iterator[bytes]:
    frame = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    long_frame = struct.pack(">ihhi", 700, 0, 9, 2) + bytes(692)
    yield b"\x00\x00" + frame * 3
    yield b"\x03\x10" + frame + long_frame + frame
    yield b"\x07\x01" + long_frame + b"\xff\xff\xff\xff"
    yield b"\x07\x01" + frame + b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    yield b"\x20\x09" + frame + b"\x7f\xff\xff\xff" + bytes(40)


def check_request(data: bytes) -> None:
    """The bytes of one request frame."""
    try:
        header, position = decode_request_header(data)
        api = APIS.get(header.api_key)
        if api is None or not api.serves(header.api_version):
            return
        value = decode(api.request, header.api_version, data, position)
    except MalformedMessage:
        return
    check_round_trip(value, header.api_version)


def check_round_trip(value: Any, version: int) -> None:
    """A decoded value becomes bytes that mean the same, and stay the same from then on."""
    encoded = encode_bytes(value, version)
    again = decode(type(value), version, encoded)
    if again != value:
        found("decode(encode(x)) == x")
    if encode_bytes(again, version) != encoded:
        found("encoding is stable")


def _request_seeds() -> Iterator[bytes]:
    for api in APIS.values():
        yield from golden.client_frames(api.name)
        for version in range(api.min_version, api.max_version + 1):
            for value in examples(api.request, version):
                yield b"".join(encode_request(value, version, _CORRELATION_ID, "fuzz"))


_RESPONSES = [
    (api.response, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)
]


def check_response(data: bytes) -> None:
    """Two bytes that choose the API and its version, then a response frame: what a client reads from a bad server."""
    if len(data) < 2:
        return
    cls, version = _RESPONSES[int.from_bytes(data[:2]) % len(_RESPONSES)]
    try:
        _, value = decode_response(cls, version, data[2:])
    except MalformedMessage:
        return
    check_round_trip(value, version)


def _response_seeds() -> Iterator[bytes]:
    for number, (cls, version) in enumerate(_RESPONSES):
        api = api_of(cls)
        if version not in (api.min_version, api.flexible_from, api.max_version):
            continue  # each codec is compiled at first use, which is most of the time of a short run
        for value in examples(cls, version):
            yield number.to_bytes(2) + b"".join(encode_response(value, version, _CORRELATION_ID))


TARGETS = (
    Target(
        "framing",
        "the same frames for any pieces; a bad length closes; no more is kept than one frame",
        check_framing,
        _frame_seeds,
    ),
    Target("requests", "a value that survives encoding, or MalformedMessage", check_request, _request_seeds),
    Target("responses", "a value that survives encoding, or MalformedMessage", check_response, _response_seeds),
)

__all__ = ("TARGETS", "check_round_trip")
