"""Compiles the decoder of one message in one version to straight-line Python.

Neighbouring fields of fixed size, with the length or count behind the fields, become one `struct` call. A varint is one
byte inline; a longer varint calls `long_uvarint`. Arrays of structs of fixed size are read by `iter_unpack` as far as
their tag sections are empty, and very long arrays may stay `rows`.

For a message of very many elements there is a decoder in steps: a generator, with a `yield` behind some elements of
each array.

In the generated code `data` is a memoryview, `p` the position, `end` the length of `data`, `budget` the elements that
may still be made. A read past the end raises struct.error or IndexError, which `schema.decode` turns into
MalformedMessage; a slice does not, hence the comparisons with `end`.
"""

from collections.abc import Callable, Generator
from struct import unpack_from
from typing import Any

from tailrace.protocol.declaration import Array, Blob, Field, Fixed, Nested, RecordBytes, Schema, Text
from tailrace.protocol.primitives import (
    MAX_STRING_BYTES,
    bad_length,
    long_uvarint,
    read_tag_section,
    too_short,
    unknown_tags_of,
)
from tailrace.protocol.rows import ROWS_FROM, read_rows, stride_of
from tailrace.protocol.source import Layout, Source, length_code

Decoder = Callable[[memoryview, int, int], tuple[Any, int, int]]
"""(data, position, budget) -> (value, position behind the value, budget left)."""
StepDecoder = Callable[[memoryview, int, int], Generator[None, None, tuple[Any, int, int]]]
"""The same in steps: a generator that returns the triple."""

STEP = 32
"""Elements of an array in a step, a power of two."""
_BULK_FROM = 4
"""Below this many elements a plain loop is faster than setting up `iter_unpack`."""


def compile_decoder(schema: Schema, version: int) -> Decoder:
    """The decoder of a message in one version."""
    compiler = _Compiler(version, schema.flexible.has(version))
    return compiler.function(f"{schema.name} v{version}", Nested(schema), nullable=False)


def compile_step_decoder(schema: Schema, version: int) -> StepDecoder:
    """The decoder in steps of a message in one version."""
    compiler = _Compiler(version, schema.flexible.has(version), in_steps=True)
    return compiler.function(f"{schema.name} v{version} in steps", Nested(schema), nullable=False)


class _Compiler:
    def __init__(self, version: int, flexible: bool, *, in_steps: bool = False) -> None:
        self.version = version
        self.flexible = flexible
        self.in_steps = in_steps

    def function(self, title: str, kind: Any, *, nullable: bool) -> Callable[..., Any]:
        """A function that decodes one value of this type: a whole message, or a tagged field."""
        body = _Body(self, title)
        with body.source.block("def decode(data, p, budget):"):
            body.source.line("end = len(data)")
            if self.in_steps:
                body.source.line("yield")
            if isinstance(kind, Nested) and not nullable:
                body.struct(kind.schema, "value", title)
            else:
                body.value("value", kind, nullable, title)
                body.flush()
            body.source.line("return value, p, budget")
        return body.source.compile("decode", title)


class _Body:
    """Writes the lines of one function. `run` collects fields of fixed size until something else must be read."""

    def __init__(self, compiler: _Compiler, title: str) -> None:
        self.compiler = compiler
        self.flexible = compiler.flexible
        self.run: list[tuple[str, Fixed]] = []
        self.source = Source(
            new=object.__new__,
            unpack_from=unpack_from,
            long_uvarint=long_uvarint,
            too_short=too_short,
            bad_length=bad_length,
            read_rows=read_rows,
            read_tag_section=read_tag_section,
            unknown_tags_of=unknown_tags_of,
        )

    def flush(self) -> None:
        """Read the run with one struct call."""
        run, self.run = self.run, []
        if not run:
            return
        line = self.source.line
        size = sum(fixed.size for _, fixed in run)
        if [fixed.code for _, fixed in run] == ["B"]:
            line(f"{run[0][0]} = data[p]")
        else:
            targets = ", ".join(target for target, _ in run)
            comma = "," if len(run) == 1 else ""
            unpack = self.source.packer("".join(fixed.code for _, fixed in run), "unpack_from")
            line(f"{targets}{comma} = {unpack}(data, p)")
        line(f"p += {size}")

    def struct(self, schema: Schema, target: str, where: str) -> None:
        """Read a struct into a new object."""
        layout = Layout(schema, self.compiler.version, self.flexible)
        self.source.line(f"{target} = new({self.source.constant(schema.cls, 'class')})")
        for field in layout.plain:
            nullable = field.nullable.has(self.compiler.version)
            self.value(f"{target}.{field.name}", field.type, nullable, f"{where}.{field.name}")
        if self.flexible:
            tags = self.source.fresh("t")
            self.run.append((tags, Fixed("B", 1)))
            self.flush()
            with self.source.block(f"if {tags}:"):
                self.tag_section(layout, target, tags, where)
            with self.source.block("else:"):
                self.defaults(target, layout.tagged)
                self.source.line(f"{target}.unknown_tags = ()")
        else:
            self.flush()
            self.source.line(f"{target}.unknown_tags = ()")
        self.defaults(target, layout.absent)

    def defaults(self, target: str, fields: tuple[Field, ...]) -> None:
        for field in fields:
            self.source.line(f"{target}.{field.name} = {self.source.constant(field.default, field.name)}")

    def tag_section(self, layout: Layout, target: str, count: str, where: str) -> None:
        line, block = self.source.line, self.source.block
        line(f"places, p, budget = read_tag_section(data, p, {count}, budget)")
        for field in layout.tagged:
            nullable = field.nullable.has(self.compiler.version)
            title = f"{where}.{field.name}"
            decode = self.source.constant(self.compiler.function(title, field.type, nullable=nullable), "decode_tag")
            with block(f"if {field.tag} in places:"):
                line(f"start, stop = places.pop({field.tag})")
                call = "yield from " if self.compiler.in_steps else ""
                line(f"{target}.{field.name}, at, budget = {call}{decode}(data[:stop], start, budget)")
                with block("if at != stop:"):
                    line(f"bad_length({title!r}, stop - start, stop)")
            with block("else:"):
                self.defaults(target, (field,))
        line(f"{target}.unknown_tags = unknown_tags_of(data, places) if places else ()")

    def value(self, target: str, kind: Any, nullable: bool, where: str) -> None:
        """Read one value; values of fixed size wait in the run."""
        if isinstance(kind, Fixed):
            self.run.append((target, kind))
        elif isinstance(kind, Nested):
            self.nested(target, kind, nullable, where)
        elif isinstance(kind, Array):
            self.array(target, kind, nullable, where)
        else:
            self.sized(target, kind, nullable or isinstance(kind, RecordBytes), where)

    def length(self, kind: Any) -> str:
        """Read a length or count with the run before the length. A flexible length is one too high; 0 stands for
        null."""
        n = self.source.fresh("n")
        code = length_code(kind, self.flexible)
        self.run.append((n, Fixed(code, {"B": 1, "h": 2, "i": 4}[code])))
        self.flush()
        if self.flexible:
            with self.source.block(f"if {n} > 127:"):
                self.source.line(f"{n}, p = long_uvarint(data, p, {n})")
        return n

    def null_or(self, target: str, n: str, nullable: bool, where: str, empty: str | None) -> str:
        """Deal with null, and with the usual case of an empty value, if that is an object of its own; return the head
        of the block for values that are not empty."""
        line, block = self.source.line, self.source.block
        lowest = 1 if self.flexible else 0
        with block(f"if {n} < {lowest}:"):
            if nullable:
                if not self.flexible:
                    with block(f"if {n} != -1:"):
                        line(f"bad_length({where!r}, {n}, p)")
                line(f"{target} = None")
            else:
                line(f"bad_length({where!r}, {n}, p)")
        if empty is not None:
            with block(f"elif {n} == {lowest}:"):
                line(f"{target} = {empty}")
        return "else:"

    def sized(self, target: str, kind: Text | Blob | RecordBytes, nullable: bool, where: str) -> None:
        line, block = self.source.line, self.source.block
        n = self.length(kind)
        empty = "''" if isinstance(kind, Text) else "b''" if isinstance(kind, Blob) else None
        with block(self.null_or(target, n, nullable, where, empty)):
            q = self.source.fresh("q")
            line(f"{q} = p + {n}{' - 1' if self.flexible else ''}")
            with block(f"if {q} > end:"):
                line(f"too_short({where!r}, p)")
            if isinstance(kind, Text):
                if self.flexible:
                    with block(f"if {n} > {MAX_STRING_BYTES + 1}:"):
                        line(f"bad_length({where!r}, {n} - 1, p)")
                line(f"{target} = str(data[p:{q}], 'utf-8')")
            elif isinstance(kind, Blob):
                line(f"{target} = bytes(data[p:{q}])")
            else:
                line(f"{target} = data[p:{q}]")
            line(f"p = {q}")

    def nested(self, target: str, kind: Nested, nullable: bool, where: str) -> None:
        local = self.source.fresh("s")
        if not nullable:
            self.flush()
            self.struct(kind.schema, local, where)
            self.source.line(f"{target} = {local}")
            return
        there = self.source.fresh("n")
        self.run.append((there, Fixed("b", 1)))
        self.flush()
        # Kafka writes a null struct as -1, and as 0 in a tagged field.
        with self.source.block(f"if {there} <= 0:"):
            self.source.line(f"{target} = None")
        with self.source.block("else:"):
            self.struct(kind.schema, local, where)
            self.source.line(f"{target} = {local}")

    def array(self, target: str, kind: Array, nullable: bool, where: str) -> None:
        line, block = self.source.line, self.source.block
        n = self.length(kind)
        with block(self.null_or(target, n, nullable, where, "()")):
            if self.flexible:
                line(f"{n} -= 1")
            line(f"budget -= {n}")
            element = kind.element
            least = least_size(element, self.compiler.version, self.flexible)
            with block(f"if budget < 0 or {n}{f' * {least}' if least > 1 else ''} > end - p:"):
                line(f"bad_length({where!r}, {n}, p)")
            if isinstance(element, Fixed):
                self.fixed_elements(target, n, element)
            elif kind.may_be_rows and isinstance(element, Nested):
                self.rows(target, n, element, where)
            else:
                self.elements(target, n, element, where)

    def rows(self, target: str, n: str, element: Nested, where: str) -> None:
        """Keep many structs of one size as bytes; else make objects."""
        stride = stride_of(element.schema, self.compiler.version, self.flexible)
        if stride is None:
            self.elements(target, n, element, where)
            return
        line, block = self.source.line, self.source.block
        line(f"rows = read_rows(data, p, {n}, {self.source.constant(stride, 'stride')}) if {n} > {ROWS_FROM} else None")
        with block("if rows is not None:"):
            line(f"{target} = rows")
            line(f"p += {n} * {stride.size}")
        with block("else:"):
            self.elements(target, n, element, where)

    def step(self, items: str) -> None:
        """End a step behind every so many elements."""
        if self.compiler.in_steps:
            with self.source.block(f"if not len({items}) & {STEP - 1}:"):
                self.source.line("yield")

    def fixed_elements(self, target: str, n: str, element: Fixed) -> None:
        if element.size == 16 and self.compiler.in_steps:
            ids = self.source.fresh("items")
            self.source.line(f"{ids} = []")
            with self.source.block(f"for i in range(p, p + {n} * 16, 16):"):
                self.source.line(f"{ids}.append(bytes(data[i:i + 16]))")
                self.step(ids)
            self.source.line(f"{target} = tuple({ids})")
        elif element.size == 16:
            self.source.line(f"{target} = tuple([bytes(data[i:i + 16]) for i in range(p, p + {n} * 16, 16)])")
        else:
            self.source.line(f"{target} = unpack_from(f'>{{{n}}}{element.code}', data, p)")
        self.source.line(f"p += {n} * {element.size}")

    def elements(self, target: str, n: str, element: Any, where: str) -> None:
        line, block = self.source.line, self.source.block
        items = self.source.fresh("items")
        line(f"{items} = []")
        if isinstance(element, Nested):
            self.bulk(items, n, element.schema)
        with block(f"for _ in range({n}):"):
            item = self.source.fresh("v")
            if isinstance(element, Nested):
                self.struct(element.schema, item, where)
            else:
                self.value(item, element, False, where)
                self.flush()
            line(f"{items}.append({item})")
            self.step(items)
        line(f"{target} = tuple({items})")

    def bulk(self, items: str, n: str, schema: Schema) -> None:
        """Read as many elements as have a fixed size; the loop that follows reads the rest."""
        layout = Layout(schema, self.compiler.version, self.flexible)
        if not layout.plain or not all(isinstance(field.type, Fixed) for field in layout.plain):
            return
        line, block = self.source.line, self.source.block
        codes = "".join(field.type.code for field in layout.plain if isinstance(field.type, Fixed))
        stride = least_size(Nested(schema), self.compiler.version, self.flexible)
        unpack = self.source.packer(codes + ("B" if self.flexible else ""), "iter_unpack")
        with block(f"if {n} > {_BULK_FROM}:"):
            columns = [self.source.fresh("c") for _ in layout.plain]
            targets = ", ".join([*columns, "t"] if self.flexible else columns)
            comma = "," if "," not in targets else ""
            with block(f"for {targets}{comma} in {unpack}(data[p:p + {n} * {stride}]):"):
                if self.flexible:
                    with block("if t:"):
                        line("break")
                line(f"v = new({self.source.constant(schema.cls, 'class')})")
                for field, column in zip(layout.plain, columns, strict=True):
                    line(f"v.{field.name} = {column}")
                self.defaults("v", layout.tagged + layout.absent)
                line("v.unknown_tags = ()")
                line(f"{items}.append(v)")
                self.step(items)
            line(f"p += len({items}) * {stride}")
            line(f"{n} -= len({items})")


def least_size(kind: Any, version: int, flexible: bool) -> int:
    """The bytes that a value of this type takes at least; no array can have more elements than bytes left / this."""
    if isinstance(kind, Fixed):
        return kind.size
    if isinstance(kind, Nested):
        plain = Layout(kind.schema, version, flexible).plain
        sizes = (
            1
            if isinstance(field.type, Nested) and field.nullable.has(version)
            else least_size(field.type, version, flexible)
            for field in plain
        )
        return max(1, sum(sizes) + flexible)
    return {"B": 1, "h": 2, "i": 4}[length_code(kind, flexible)]
