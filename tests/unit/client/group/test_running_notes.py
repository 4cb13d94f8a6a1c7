"""The note about a handler that runs for long, in the metadata text of a committed offset."""

import pytest

from tailrace.client.group.running_notes import MOST_CHARACTERS, RunningNote, note_in


@pytest.mark.parametrize(
    "note",
    [
        RunningNote(0, 0, "m"),
        RunningNote(2**59, 1_700_000_000_000, "console consumer-9f6e"),
        RunningNote(5, 1_700_000_000_000, "running offset=1 since=1 member=m"),
    ],
)
def test_a_note_is_read_as_it_was_written(note: RunningNote) -> None:
    assert note_in(note.text()) == note


def test_a_note_that_would_be_too_long_is_left_out() -> None:
    longest = MOST_CHARACTERS - len(RunningNote(1, 1, "").text())
    assert len(RunningNote(1, 1, "m" * longest).text()) == MOST_CHARACTERS
    assert RunningNote(1, 1, "m" * (longest + 1)).text() == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "done by hand",
        "running offset=-1 since=5 member=m",
        "running offset=1 since=5",
        "running offset=1 since=5 member=",
        "running offset=1 since=5 member=m\nrunning offset=2 since=5 member=m",
        "running offset=\u0661 since=5 member=m",
        f"running offset={'9' * 19} since=5 member=m",
        f"running offset=1 since={'9' * 16} member=m",
        "running offset=1 since=5 member=" + "m" * MOST_CHARACTERS,
    ],
)
def test_a_text_of_any_other_form_is_no_note(text: str) -> None:
    assert note_in(text) is None
