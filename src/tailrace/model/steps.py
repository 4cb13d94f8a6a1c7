"""Work in steps that has a result: a generator, whose host decides how many steps a turn takes."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def result_of(steps: Generator[object, None, T]) -> T:
    """The result of all steps, here and now."""
    while True:
        try:
            next(steps)
        except StopIteration as over:
            result: T = over.value
            return result
