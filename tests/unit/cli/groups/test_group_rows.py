"""Cells of `tailrace groups describe`."""

import pytest

from tailrace.cli.groups.rows import key_cell
from tailrace.cli.output import Cell


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (None, None),
        (b"", ""),
        (b"orders-7", "orders-7"),
        (b"k" * 48, "k" * 48),
        (b"k" * 49, "k" * 48 + "..."),
        ("\u00fc".encode() * 40, "\u00fc" * 24 + "..."),
        (b"k" + "\u00fc".encode() * 40, "k" + "\u00fc" * 23 + "..."),
        (b"\xff\x00", "/wA="),
        (b"\xff" * 60, "/" * 64 + "..."),
    ],
)
def test_a_key_is_shown_as_text_if_it_is_text_and_in_short(key: bytes | None, shown: Cell) -> None:
    assert key_cell(key) == shown
