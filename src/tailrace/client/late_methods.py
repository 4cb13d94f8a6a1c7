"""Methods of clients that are made at their first use.

An administrator's client has sixty calls from twenty modules, and most programs use a few of them.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Generic, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class LateModule:
    """A module that is imported when a name of the module is first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


class _LateMethod(Generic[F]):
    """The place of a method in its class until the method is first asked for, by its class or by an object."""

    def __init__(self, make: Callable[[], F]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type) -> Any:
        setattr(self._owner, self._name, self._make())  # the class has a plain function from now on
        return getattr(owner if instance is None else instance, self._name)


def late_method(make: Callable[[], F]) -> F:
    """The method of a class that `make` returns, which is called when the method is first asked for."""
    return cast(F, _LateMethod(make))
