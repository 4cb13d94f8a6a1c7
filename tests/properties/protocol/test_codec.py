"""Properties of the codec for every served API and version, whatever the value and whatever the bytes."""

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import budgets
from tailrace.model.errors import MalformedMessage
from tailrace.model.steps import result_of
from tailrace.protocol.declaration import Array, replace, schema_of
from tailrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_prefixed,
)
from tailrace.protocol.primitives import Buffer, write_tag_section
from tailrace.protocol.registry import APIS
from tailrace.protocol.request_headers import decode_request_header
from tailrace.protocol.schema import (
    MAX_ELEMENTS,
    decode,
    decode_in_steps,
    encode,
    encode_bytes,
    encode_in_steps,
    unknown_tags,
)
from testkit.records.strategies import messages

CASES = [
    (cls, version)
    for api in APIS.values()
    for cls in (api.request, api.response)
    for version in range(api.min_version, api.max_version + 1)
]
CASES += [(cls, version) for cls in (ConsumerProtocolSubscription, ConsumerProtocolAssignment) for version in range(4)]
FLEXIBLE_CASES = [(cls, version) for cls, version in CASES if schema_of(cls).flexible.has(version)]


def case_id(part: Any) -> str:
    return part.__name__ if isinstance(part, type) else f"v{part}"


every_case = pytest.mark.parametrize(("cls", "version"), CASES, ids=case_id)
every_flexible_case = pytest.mark.parametrize(("cls", "version"), FLEXIBLE_CASES, ids=case_id)


def quick(examples: int) -> settings:
    return settings(max_examples=budgets.examples(examples), deadline=None, database=None)


def value_or_malformed(cls: type, version: int, data: bytes) -> Any:
    try:
        return decode(cls, version, data)
    except MalformedMessage:
        return None


@every_case
def test_a_value_survives_the_wire_and_no_part_of_it_passes_for_the_whole(cls: type, version: int) -> None:
    @quick(2)
    @given(messages(cls, version))
    def check(value: Any) -> None:
        data = encode_bytes(value, version)
        assert decode(cls, version, data) == value
        assert decode(cls, version, b"before" + data, 6) == value
        assert b"".join(encode(value, version)) == data
        for size in range(len(data)):
            with pytest.raises(MalformedMessage):
                decode(cls, version, data[:size])
        with pytest.raises(MalformedMessage, match="too many"):
            decode(cls, version, data + b"\0")

    check()


@every_case
def test_a_codec_in_steps_is_the_codec(cls: type, version: int) -> None:
    """Also for arrays of several steps, cut short or not."""

    @quick(2)
    @given(messages(cls, version), st.integers(1, 80), st.data())
    def check(value: Any, times: int, data: st.DataObject) -> None:
        for field in schema_of(cls).fields:
            if isinstance(field.type, Array) and (elements := getattr(value, field.name)):
                value = replace(value, **{field.name: tuple(elements) * times})
        whole = encode_bytes(value, version)
        parts: list[Buffer] = []
        chunks: list[Buffer] = []
        for _ in encode_in_steps(value, version, parts, chunks):
            pass
        assert b"".join([*chunks, *parts]) == whole
        size = data.draw(st.integers(0, len(whole)))
        for part in (whole, whole[:size]):
            assert decoded_in_steps(cls, version, part) == value_or_malformed(cls, version, part)

    check()


def decoded_in_steps(cls: type, version: int, data: bytes) -> Any:
    try:
        steps: Generator[None, None, tuple[Any, int]] = decode_in_steps(
            cls, version, memoryview(data), 0, max_elements=MAX_ELEMENTS
        )
        value, stop = result_of(steps)
    except MalformedMessage:
        return None
    return value if stop == len(data) else None


@every_case
def test_bytes_with_a_few_wrong_ones_are_a_value_or_malformed(cls: type, version: int) -> None:
    @quick(2)
    @given(messages(cls, version), st.data())
    def check(value: Any, data: st.DataObject) -> None:
        damaged = bytearray(encode_bytes(value, version))
        places = st.integers(0, max(0, len(damaged) - 1))
        for place, byte in data.draw(
            st.lists(st.tuples(places, st.sampled_from(b"\x00\x01\x7f\x80\xfe\xff")), max_size=4)
        ):
            damaged[place : place + 1] = bytes([byte])
        read = value_or_malformed(cls, version, bytes(damaged))
        if read is not None:
            assert decode(cls, version, encode_bytes(read, version)) == read

    check()


@every_case
def test_any_bytes_are_a_value_or_malformed(cls: type, version: int) -> None:
    @quick(3)
    @given(st.binary(max_size=80))
    def check(data: bytes) -> None:
        value_or_malformed(cls, version, data)

    check()


@every_flexible_case
def test_unknown_tagged_fields_survive(cls: type, version: int) -> None:
    @quick(2)
    @given(
        messages(cls, version),
        st.dictionaries(st.integers(10_000, 0xFFFFFFFF), st.binary(max_size=9), min_size=1, max_size=32),
    )
    def check(value: Any, tags: dict[int, bytes]) -> None:
        unknown = tuple(sorted(tags.items()))
        # Every message ends with its own tag section; here it is empty if no tagged field is set.
        plain = encode_bytes(value, version)
        if plain[-1:] != b"\0" or any(field.tag is not None for field in schema_of(cls).fields):
            return
        extended = plain[:-1] + write_tag_section([], unknown)
        read: Any = decode(cls, version, extended)
        assert unknown_tags(read) == unknown
        assert encode_bytes(read, version) == extended

    check()


@settings(database=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_header_or_malformed(data: bytes) -> None:
    try:
        _, position = decode_request_header(data)
    except MalformedMessage:
        return
    assert 0 < position <= len(data)


@settings(database=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_subscription_or_malformed(data: bytes) -> None:
    try:
        decode_prefixed(ConsumerProtocolSubscription, data)
    except MalformedMessage:
        return
