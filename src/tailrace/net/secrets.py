"""A secret of a user: a text, or a reference to the place of the text. Nothing shows the text by accident."""

import os
from pathlib import Path
from typing import Any, Final

from tailrace.model.errors import ErrorCode, KafkaError

_ENVIRONMENT: Final = "env:"
_FILE: Final = "file:"
_LONGEST_BYTES: Final = 64 << 10
HIDDEN: Final = "********"


class Secret:
    """A password or token. `env:NAME` and `file:PATH` are references, which `reveal` follows when the text is needed.

    A text is never shown and never pickled; a reference is pickled, and followed on the other machine.
    """

    __slots__ = ("_given",)

    def __init__(self, given: str) -> None:
        self._given = given

    @property
    def is_reference(self) -> bool:
        """Whether the secret stands elsewhere."""
        return self._given.startswith((_ENVIRONMENT, _FILE))

    @property
    def location(self) -> Path | None:
        """The file of the secret; None for a text, and for a variable of the environment."""
        return Path(self._given.removeprefix(_FILE)) if self._given.startswith(_FILE) else None

    def reveal(self) -> str:
        """The text. Raises KafkaError INVALID_CONFIG that names the reference if there is no text."""
        given = self._given
        if given.startswith(_ENVIRONMENT):
            name = given.removeprefix(_ENVIRONMENT)
            text = os.environ.get(name)
            if not text:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"the environment variable {name} of a secret is not set")
            return text
        if given.startswith(_FILE):
            return _read(Path(given.removeprefix(_FILE)))
        return given

    def __repr__(self) -> str:
        return f"Secret({self._given})" if self.is_reference else f"Secret({HIDDEN})"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._given == self._given

    def __hash__(self) -> int:
        return hash(self._given)

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, memo: object) -> "Secret":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.is_reference:
            raise TypeError("a secret is not pickled; give it as env:NAME or file:PATH, which is read where it is used")
        return Secret, (self._given,)


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LONGEST_BYTES + 1)
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8 text"
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"cannot read the file {path} of a secret: {reason}") from None
    text = text.rstrip("\r\n")
    if not text or len(text) > _LONGEST_BYTES:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"the file {path} of a secret is empty or too long")
    return text
