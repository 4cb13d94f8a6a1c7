"""The note of a group's member about a handler that runs for long: the metadata text of a committed offset (decision
0103).

The text is Kafka's own free text of an offset, so every server keeps it, and any client may write anything there.
"""

import re
from typing import Final, NamedTuple

MOST_CHARACTERS: Final = 512
"""The longest note; a server keeps 4,096 characters unless its offset.metadata.max.bytes says otherwise."""
_FORM: Final = re.compile(r"running offset=(\d{1,18}) since=(\d{1,15}) member=(.+)", re.ASCII)


class RunningNote(NamedTuple):
    """The handler of a partition that has been running for the longest time."""

    offset: int
    """The record that the handler has."""
    since_ms: int
    """The time at which the handler got the record, by the clock of the member, in ms since 1970."""
    member_id: str

    def text(self) -> str:
        """The note as the text of a commit; empty if the note would be too long."""
        text = f"running offset={self.offset} since={self.since_ms} member={self.member_id}"
        return text if len(text) <= MOST_CHARACTERS else ""


def note_in(text: str) -> RunningNote | None:
    """The note in the text of a committed offset; None if the text is no note."""
    found = _FORM.fullmatch(text) if len(text) <= MOST_CHARACTERS else None
    return None if found is None else RunningNote(int(found[1]), int(found[2]), found[3])
