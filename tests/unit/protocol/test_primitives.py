import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import MalformedMessage
from tailrace.protocol.primitives import (
    MAX_TAGS,
    MAX_UNKNOWN_TAG_BYTES,
    read_tag_section,
    read_uvarint,
    read_varint,
    unknown_tags_of,
    uvarint,
    varint,
    write_tag_section,
)


@given(st.integers(0, 0xFFFFFFFF))
def test_unsigned_varints_survive(value: int) -> None:
    encoded = uvarint(value)
    assert read_uvarint(b"." + encoded + b".", 1) == (value, 1 + len(encoded))
    assert len(encoded) <= 5


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_signed_varints_survive(value: int) -> None:
    encoded = varint(value)
    assert read_varint(b"." + encoded + b".", 1) == (value, 1 + len(encoded))
    assert len(encoded) <= 10


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (300, "d804")]
)
def test_zigzag_is_kafkas(value: int, encoded: str) -> None:
    assert varint(value).hex() == encoded


@pytest.mark.parametrize("wrong", ["", "80", "ffffffff", "808080808000", "ffffffff7f", "ffffffffff01"])
def test_an_unsigned_varint_that_is_cut_or_too_large_is_malformed(wrong: str) -> None:
    with pytest.raises(MalformedMessage):
        read_uvarint(bytes.fromhex(wrong), 0)


@pytest.mark.parametrize("wrong", ["", "80", "ff" * 9 + "02", "80" * 10 + "00"])
def test_a_signed_varint_that_is_cut_or_too_large_is_malformed(wrong: str) -> None:
    with pytest.raises(MalformedMessage):
        read_varint(bytes.fromhex(wrong), 0)


def test_a_struct_has_so_many_tagged_fields_and_no_more() -> None:
    for count in (MAX_TAGS, MAX_TAGS + 1):
        section = write_tag_section([], tuple((tag, b"") for tag in range(count)))
        if count <= MAX_TAGS:
            assert len(read_tag_section(memoryview(section), 1, section[0], 1_000)[0]) == count
        else:
            with pytest.raises(MalformedMessage, match="tag section"):
                read_tag_section(memoryview(section), 1, section[0], 1_000)


def test_unknown_tagged_fields_have_so_many_bytes_and_no_more() -> None:
    for size in (MAX_UNKNOWN_TAG_BYTES, MAX_UNKNOWN_TAG_BYTES + 1):
        section = write_tag_section([], ((10_000, bytes(size // 2)), (10_001, bytes(size - size // 2))))
        places, _, _ = read_tag_section(memoryview(section), 1, section[0], 1_000)
        if size <= MAX_UNKNOWN_TAG_BYTES:
            assert sum(len(content) for _, content in unknown_tags_of(memoryview(section), places)) == size
        else:
            with pytest.raises(MalformedMessage, match="unknown tags"):
                unknown_tags_of(memoryview(section), places)
