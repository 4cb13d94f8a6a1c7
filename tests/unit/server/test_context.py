"""The name of a request in the log of the node is bounded, however long the name of its client is."""

import pytest

from tailrace.server.context import LONGEST_REQUESTED_BY, RequestContext
from tailrace.server.response_errors import ResponseErrors
from testkit.ports import RecordingConnection


def requested_by(client_id: str | None) -> str:
    context = RequestContext(
        connection=RecordingConnection(),
        slot=0,
        api_key=21,
        api_version=2,
        correlation_id=7,
        client_id=client_id,
        errors=ResponseErrors(),
    )
    return context.requested_by


def test_a_client_is_named_by_its_address_and_the_name_it_gives_itself() -> None:
    assert requested_by("billing") == "127.0.0.1 billing"
    assert requested_by(None) == "127.0.0.1"


@pytest.mark.parametrize("character", ["x", "\0", "\n-", "\\", "\U0010ffff", "'\"", "é"])
def test_a_long_name_of_a_client_is_cut_as_it_stands_in_a_line(character: str) -> None:
    """A log line has it with its escapes, which are up to ten times as long as the name."""
    text = requested_by(character * (32_767 // len(character)))
    assert text.startswith(f"127.0.0.1 {character}")
    assert text.endswith("...")
    assert LONGEST_REQUESTED_BY - 10 < len(repr(text)) <= LONGEST_REQUESTED_BY


def test_a_name_that_just_fits_is_whole() -> None:
    name = "x" * (LONGEST_REQUESTED_BY - len(repr("127.0.0.1 ")))
    assert requested_by(name) == f"127.0.0.1 {name}"
    assert requested_by(name + "x").endswith("x...")
