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
    if number:
        raise KafkaError(code_of(number), detail)
