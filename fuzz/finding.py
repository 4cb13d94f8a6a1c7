"""What a target raises when a promise is broken, besides the exceptions that break out of the product by themselves."""

from typing import NoReturn


class Finding(Exception):
    """Bytes for which a promise does not hold."""


def found(promise: str) -> NoReturn:
    """Report a broken promise; a function, because asserts belong to the product and may be caught there."""
    raise Finding(promise)
