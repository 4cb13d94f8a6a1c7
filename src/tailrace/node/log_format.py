"""The node's own log: one line per event on stderr, as `key=value` for people or as JSON for machines.

Messages are written as `event=what-happened key=value ...` everywhere. A value with spaces is quoted, or runs to the
next key.
"""

import json
import logging
import re
import sys
import time
from typing import Final

TEXT: Final = "text"
JSON: Final = "json"

_TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_FIELD: Final = re.compile(
    r"""([A-Za-z][\w.-]*)=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|.*?)(?=\s+[A-Za-z][\w.-]*=|\s*$)"""
)
_OWN_NAMES: Final = frozenset(("time", "level", "logger", "message", "traceback"))


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (ISO 8601, UTC, ms), level, logger, then the keys of the message."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        line: dict[str, object] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = _fields(message)
        if "event" not in fields:
            line["message"] = message
        line |= fields
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


class TextFormatter(logging.Formatter):
    """`time level logger message`. A message is one line whatever is in it; a traceback follows on lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        record.message = record.message.replace("\n", "\\n").replace("\r", "\\r")
        return super().formatMessage(record)


def set_up_logging(log_format: str = TEXT, *, level: int = logging.INFO) -> None:
    """Send the log of this process to stderr in this format."""
    handler = logging.StreamHandler(sys.stderr)
    formatter: logging.Formatter
    if log_format == JSON:
        formatter = JsonFormatter()
    else:
        formatter = TextFormatter(_TEXT_FORMAT)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in tuple(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)


def _fields(message: str) -> dict[str, str]:
    """The keys and values of a message; the node's own names are left to the node."""
    fields: dict[str, str] = {}
    for match in _FIELD.finditer(message):
        name, value = match[1], match[2]
        if value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1:
            value = value[1:-1]
        fields.setdefault(f"{name}_" if name in _OWN_NAMES else name, value)
    return fields
