"""Properties files, as Java reads and writes them."""

import pytest

from tailrace.node.settings.properties import parse_properties
from testkit.programs.properties_files import FILES


@pytest.mark.parametrize("kind", FILES)
def test_a_properties_file_is_read_as_java_reads_it(kind: str) -> None:
    text, expected = FILES[kind]
    assert parse_properties(text) == expected


def test_blanks_and_a_mark_of_byte_order_are_left_out() -> None:
    assert parse_properties("\ufeffa = 1 \n") == {"a": "1"}


def test_a_malformed_escape_is_refused() -> None:
    with pytest.raises(ValueError, match="malformed"):
        parse_properties("a=\\u12")
