"""The exception of a target for a broken promise, beside the exceptions that escape from the product by themselves."""

from typing import NoReturn


class Finding(Exception):
    """Bytes for which a promise does not hold."""


def found(promise: str) -> NoReturn:
    """Report a broken promise; a function, because asserts belong to the product and may be caught there."""
    raise Finding(promise)
