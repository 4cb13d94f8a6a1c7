"""Python source under construction, for the decoder and encoder compilers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any

from tailrace.protocol.declaration import Field, Schema, Text, WireType

LITERALS = (int, bool, type(None))


class Source:
    """Lines of a function, and the objects that its free names stand for."""

    def __init__(self, **names: Any) -> None:
        self.names: dict[str, Any] = dict(names)
        self._lines: list[str] = []
        self._depth = 0
        self._numbers: dict[str, int] = {}

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines written inside are the body of `head`."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def fresh(self, stem: str) -> str:
        """A local name that is not used yet."""
        self._numbers[stem] = number = self._numbers.get(stem, 0) + 1
        return f"{stem}{number}"

    def constant(self, value: Any, stem: str = "const") -> str:
        """An expression for this object: a literal where one exists, else a name bound to the object."""
        if isinstance(value, LITERALS) or value in ((), "", b""):
            return repr(value)
        for name, known in self.names.items():
            if known is value:
                return name
        name = self.fresh(f"{stem}_")
        self.names[name] = value
        return name

    def packer(self, codes: str, method: str) -> str:
        """A name for one method (pack, unpack_from, iter_unpack) of the precompiled struct with these codes."""
        name = f"{method}_{codes.replace('?', 'o')}"
        if name not in self.names:
            self.names[name] = getattr(Struct(">" + codes), method)
        return name

    def compile(self, function: str, title: str) -> Callable[..., Any]:
        """The function of this name, from the lines so far."""
        exec(compile("\n".join(self._lines), f"<codec of {title}>", "exec"), self.names)  # noqa: S102
        compiled: Callable[..., Any] = self.names[function]
        return compiled


class Layout:
    """The fields of a struct in one version: in order, by tag, and absent."""

    def __init__(self, schema: Schema, version: int, flexible: bool) -> None:
        here = [field for field in schema.fields if field.versions.has(version)]
        self.plain: tuple[Field, ...] = tuple(field for field in here if field.tag is None)
        tagged = [field for field in here if field.tag is not None and flexible]
        self.tagged: tuple[Field, ...] = tuple(sorted(tagged, key=lambda field: field.tag or 0))
        self.absent: tuple[Field, ...] = tuple(
            field for field in schema.fields if field not in self.plain and field not in self.tagged
        )


def length_code(kind: WireType, flexible: bool) -> str:
    """The form of a length or count: the first varint byte in flexible versions, int16 for strings, else int32."""
    if flexible:
        return "B"
    return "h" if isinstance(kind, Text) else "i"
