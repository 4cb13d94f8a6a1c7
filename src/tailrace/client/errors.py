"""KafkaErrors from the error codes of servers of any version, and for arguments of the wrong type."""

from collections.abc import Iterable

from tailrace.model.errors import ErrorCode, KafkaError


def code_of(number: int) -> ErrorCode:
    """The code of this number; UNKNOWN_SERVER_ERROR for a code of a newer server."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def check(number: int, detail: str) -> None:
    """Raise KafkaError for this error code, unless it is 0."""
    if not number:
        return
    code = code_of(number)
    if number == ErrorCode.UNKNOWN_SERVER_ERROR:
        detail = f"{detail}: the broker has failed at it, and its own log says why"
    elif code is ErrorCode.UNKNOWN_SERVER_ERROR:
        detail = f"{detail}: the broker says error {number}, which is newer than this client"
    raise KafkaError(code, detail)


def several(names: Iterable[str]) -> tuple[str, ...]:
    """The names. Raises KafkaError(INVALID_REQUEST) for a single string, which would be a list of letters."""
    if isinstance(names, str):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"this takes several names: say [{names!r}] for one")
    return tuple(names)
