"""Names of a package that are imported when they are first used (PEP 562), so that the import of the package is quick.

A package says `if not TYPE_CHECKING: __getattr__ = late_names(__name__, {...})`: a type checker reads the package's
imports under TYPE_CHECKING, and finds a name that is not there.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import FrameType


def late_names(
    package: str, homes: Mapping[str, Iterable[str]], absence: Callable[[str], str] | None = None
) -> Callable[[str], object]:
    """The `__getattr__` of the package. `homes`: names by the module, below `tailrace`, that has them.

    `absence` returns the text about a name that the package lacks.
    """
    home_of = {name: f"tailrace.{module}" for module, names in homes.items() for name in names}

    def found(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            raise absent_name(package, name, absence)
        value: object = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return found


def absent_name(package: str, name: str, absence: Callable[[str], str] | None = None) -> Exception:
    """The exception for a name that the package lacks: AttributeError, and ImportError inside of `from ... import`.

    Python replaces the text of an AttributeError inside of this statement by a text of its own, and lets an ImportError
    pass. `hasattr` needs the AttributeError.
    """
    plain = f"module {package!r} has no attribute {name!r}"
    if absence is None or name.startswith("_"):
        return AttributeError(plain, name=name, obj=sys.modules[package])
    if not _is_import_statement(sys._getframe(1), package):
        return AttributeError(f"{plain}: {absence(name)}", name=name, obj=sys.modules[package])
    if _is_module(package, name):
        return AttributeError(plain, name=name)  # Python imports the module next
    return ImportError(f"cannot import name {name!r} from {package!r}: {absence(name)}", name=package)


def _is_module(package: str, name: str) -> bool:
    from importlib.util import find_spec  # not at the top: as above

    return hasattr(sys.modules[package], "__path__") and find_spec(f"{package}.{name}") is not None


def _is_import_statement(frame: FrameType | None, package: str) -> bool:
    """Whether the first frame outside of the package runs `from package import name`."""
    from opcode import opmap  # not at the top: a name that exists needs no look at frames

    while frame is not None and frame.f_globals.get("__name__") in (__name__, package):
        frame = frame.f_back
    if frame is None:
        return False
    code = frame.f_code
    return code.co_name == "_handle_fromlist" or code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]
