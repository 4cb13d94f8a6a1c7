"""Java's properties files, read by the rules of `java.util.Properties`, but in UTF-8.

Programs that write properties escape colons: Java's `Properties.store` writes listeners=PLAINTEXT\\://localhost\\:9092.
"""

import re
from collections.abc import Iterator
from typing import Final

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_PARTS: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
"""A name, which ends at the first blank, `=` or `:` without a backslash, and a value."""
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CHARACTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """The names and values; a repeated name has its last value. Raises ValueError for a malformed \\uxxxx.

    Blanks at the end of a value are left out, as Kafka does for every setting.
    """
    properties: dict[str, str] = {}
    for line in _logical_lines(text.removeprefix("\ufeff")):
        parts = _PARTS.fullmatch(line)
        assert parts is not None, "every line has a name, perhaps an empty one"
        name, value = map(_unescaped, parts.groups())
        properties[name] = value.strip()
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    """The lines with settings, joined with their continuation lines. A comment is not continued."""
    line: str | None = None
    for written in _LINE_END.split(text):
        stripped = written.lstrip(_BLANKS)
        if line is None and (not stripped or stripped[0] in "#!"):
            continue
        line = (line or "") + stripped
        if (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1]
            continue
        yield line
        line = None
    if line is not None:
        yield line


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(escape: re.Match[str]) -> str:
    code = escape[1]
    if code == "u":
        raise ValueError(f"malformed \\uxxxx escape in {escape.string!r}")
    return chr(int(code[1:], 16)) if code[0] == "u" else _CHARACTERS.get(code, code)
