"""Names that a caller gives: of topics, of groups."""

from collections.abc import Iterable

from tailrace.model.errors import ErrorCode, KafkaError


def several(names: Iterable[str]) -> tuple[str, ...]:
    """The names. Raises KafkaError(INVALID_REQUEST) for a single one, which Python takes for a list of letters."""
    if isinstance(names, str):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"this takes several names: say [{names!r}] for one")
    return tuple(names)
