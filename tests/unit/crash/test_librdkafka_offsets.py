"""Acknowledgements without an offset: the record has to be in the partition, wherever it is."""

from types import SimpleNamespace
from typing import Any

import pytest

from crash.librdkafka_offsets import is_there, offset_of
from testkit.verdicts.replica_history import UNKNOWN_OFFSET

VALUES = {0: "first", 1: "second"}


@pytest.mark.parametrize(("reported", "offset"), [(None, UNKNOWN_OFFSET), (0, 0), (7, 7)])
def test_the_offset_of_a_delivery_report(reported: int | None, offset: int) -> None:
    message: Any = SimpleNamespace(offset=lambda: reported)
    assert offset_of(message) == offset


@pytest.mark.parametrize(
    ("offset", "value", "expected"),
    [
        (0, "first", True),
        (1, "first", False),
        (2, "first", False),
        (UNKNOWN_OFFSET, "second", True),
        (UNKNOWN_OFFSET, "third", False),
    ],
)
def test_a_value_is_there_at_its_offset_if_that_is_known(offset: int, value: str, expected: bool) -> None:
    assert is_there(VALUES, offset, value) is expected
