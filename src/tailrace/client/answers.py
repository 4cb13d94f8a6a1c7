"""Error codes in answers, from servers of any age."""

from tailrace.model.errors import ErrorCode, KafkaError


def code_of(number: int) -> ErrorCode:
    """The code of this number; UNKNOWN_SERVER_ERROR for one that a newer server has and we have not."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def check(number: int, detail: str) -> None:
    """Raise the KafkaError that this number stands for, unless it stands for success."""
    if not number:
        return
    code = code_of(number)
    if number == ErrorCode.UNKNOWN_SERVER_ERROR:
        detail = f"{detail}: the broker has failed at it, and its own log says why"
    elif code is ErrorCode.UNKNOWN_SERVER_ERROR:
        detail = f"{detail}: the broker says error {number}, which is newer than this client"
    raise KafkaError(code, detail)
