"""Regular expressions that clients send, matched in time linear in the text (RE2): no expression keeps a broker busy.

Python's own engine backtracks. Kafka matches with RE2/J, whose syntax this engine shares.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError

Matcher = Callable[[bytes], bool]
"""Whether the expression matches the whole of a text in UTF-8."""

LONGEST_PATTERN: Final = 4096
"""Characters."""
_MOST_UNICODE_CLASSES: Final = 16
"""Each is hundreds of ranges; a thousand take 200 ms to compile."""
_MEMORY_BYTES: Final = 256 * 1024
"""Of a compiled expression and of its cached states together: what needs more is refused, or matched more slowly."""
_MOST_COMPILED: Final = 256


def compile_pattern(text: str) -> Matcher:
    """The expression, ready to match. Raises KafkaError INVALID_REGULAR_EXPRESSION (128) with the reason.

    A new pattern takes up to some 20 ms to compile.
    """
    check_length(text)
    return _compiled(text)


def check_length(text: str) -> None:
    """Whether there is too much of it to compile it at all. Raises KafkaError INVALID_REGULAR_EXPRESSION (128)."""
    if len(text) > LONGEST_PATTERN:
        raise _invalid(f"it has {len(text)} characters, and at most {LONGEST_PATTERN} are taken")
    classes = text.count(r"\p") + text.count(r"\P")
    if classes > _MOST_UNICODE_CLASSES:
        raise _invalid(f"it has {classes} Unicode classes, and at most {_MOST_UNICODE_CLASSES} are taken")


@lru_cache(maxsize=_MOST_COMPILED)
def _compiled(text: str) -> Matcher:
    import re2  # the first expression pays for the library, not the start of every node

    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    options.never_capture = True
    try:
        pattern = re2.compile(text.encode(), options)
    except re2.error as fault:
        reason = fault.args[0] if fault.args else "it cannot be compiled"
        raise _invalid(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None
    return lambda name: pattern.fullmatch(name) is not None


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"the regular expression is not valid (RE2): {reason}")
