import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import MalformedMessage
from tailrace.protocol.primitives import read_uvarint, read_varint, uvarint, varint


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
