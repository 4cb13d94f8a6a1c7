"""Names of a package that are imported when they are first used (PEP 562), so that the import of the package is quick.

A package says `if not TYPE_CHECKING: __getattr__ = late_names(__name__, {...})`: a type checker reads the package's
imports under TYPE_CHECKING, and finds a name that is not there.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module


def late_names(package: str, homes: Mapping[str, Iterable[str]]) -> Callable[[str], object]:
    """The `__getattr__` of the package. `homes`: names by the module, below `tailrace`, that has them."""
    home_of = {name: f"tailrace.{module}" for module, names in homes.items() for name in names}

    def found(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return found
