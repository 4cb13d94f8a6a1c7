"""Several names, as arguments of calls: kinds for a type checker, and the check at run time."""

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from tailrace.model.errors import ErrorCode, KafkaError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Names(Protocol):
    """Several texts: a list, tuple, set, or the keys of a mapping. A text is no such kind, since `in` takes texts alone
    there, so a type checker finds `topics="orders"`, which would be a list of letters."""

    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __len__(self) -> int: ...


class Several(Protocol[T_co]):
    """A list or tuple, of an item kind that may be a text. Neither a text nor a mapping is of this kind."""

    def __iter__(self) -> Iterator[T_co]: ...
    def __len__(self) -> int: ...
    def __contains__(self, item: object, /) -> bool: ...
    def __getitem__(self, number: int, /) -> T_co: ...


def several(names: Iterable[T]) -> tuple[T, ...]:
    """The names, or other items. Raises KafkaError(INVALID_REQUEST) for a single text."""
    if isinstance(names, str):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"this takes several names: say [{names!r}] for one")
    return tuple(names)
