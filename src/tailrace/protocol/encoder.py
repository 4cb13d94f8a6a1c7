"""Compiles the encoder of one message in one version to straight-line Python.

In the generated code `append` adds a small piece to `parts`; a large piece goes to `chunks` by reference, behind the
joined earlier pieces. Neighbouring fields of fixed size, with the length behind the fields, become one `struct` call. A
value that the wire cannot hold raises struct.error, TypeError or AttributeError, which `schema.encode` explains. An
encoder in steps is a generator, with a `yield` behind some elements of each array.
"""

from collections.abc import Callable, Iterator, Sequence
from struct import pack
from typing import Any, cast

from tailrace.protocol.declaration import Array, Field, Fixed, Nested, RecordBytes, Schema, Text
from tailrace.protocol.primitives import ONE_BYTE_UVARINTS, Buffer, uvarint, write_tag_section
from tailrace.protocol.rows import Rows, stride_of
from tailrace.protocol.source import Layout, Source, length_code

Encoder = Callable[[Any, list[Buffer], list[Buffer]], None]
"""(value, parts, chunks) -> None. The rest that stays in `parts` belongs behind `chunks`."""
StepEncoder = Callable[[Any, list[Buffer], list[Buffer]], Iterator[None]]
"""The same in steps."""
STEP = 32
"""Elements of an array in a step, a power of two."""

BY_REFERENCE_FROM = 2048
"""Bytes from this size on are not copied: below it a copy is cheaper than one more buffer for the socket."""


def compile_encoder(schema: Schema, version: int) -> Encoder:
    """The encoder of a message in one version."""
    compiler = _EncoderCompiler(version, schema.flexible.has(version))
    return compiler.function(f"{schema.name} v{version}", Nested(schema), nullable=False)


def compile_step_encoder(schema: Schema, version: int) -> StepEncoder:
    """The encoder in steps of a message in one version."""
    compiler = _EncoderCompiler(version, schema.flexible.has(version), in_steps=True)
    return compiler.function(f"{schema.name} v{version} in steps", Nested(schema), nullable=False)


def compile_struct_encoder(schema: Schema, version: int, *, flexible: bool) -> Encoder:
    """The encoder of a struct inside of a message, in one version of the message."""
    compiler = _EncoderCompiler(version, flexible)
    return compiler.function(f"{schema.name} in v{version}", Nested(schema), nullable=False)


class BufferChain:
    """Buffers that are one value on the wire, of BY_REFERENCE_FROM bytes at least: the buffers are sent without being
    joined."""

    __slots__ = ("_size_bytes", "buffers")

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.buffers = buffers
        self._size_bytes = sum(map(len, buffers))

    def __len__(self) -> int:
        """The bytes of all pieces."""
        return self._size_bytes


def refer_to(data: Buffer | BufferChain, parts: list[Buffer], chunks: list[Buffer]) -> None:
    """Make `data` itself a chunk, or its buffers chunks, behind the earlier parts."""
    chunks.append(b"".join(parts))
    if type(data) is BufferChain:
        chunks += data.buffers
    else:
        chunks.append(cast(Buffer, data))
    parts.clear()


class _EncoderCompiler:
    def __init__(self, version: int, flexible: bool, *, in_steps: bool = False) -> None:
        self.version = version
        self.flexible = flexible
        self.in_steps = in_steps

    def function(self, title: str, kind: Any, *, nullable: bool) -> Callable[..., Any]:
        """A function that encodes one value of this type: a whole message, or a tagged field."""
        body = _EncoderBody(self)
        with body.source.block("def encode(value, parts, chunks):"):
            body.source.line("append = parts.append")
            if self.in_steps:
                body.source.line("yield")
            if isinstance(kind, Nested) and not nullable:
                body.struct(kind.schema, "value", title)
            else:
                body.is_tagged = True
                body.value("value", kind, nullable, title)
            body.flush()
        return body.source.compile("encode", title)


class _EncoderBody:
    """Writes the lines of one function. `run` collects (expression, struct code) until something else is due."""

    def __init__(self, compiler: _EncoderCompiler) -> None:
        self.compiler = compiler
        self.flexible = compiler.flexible
        self.is_tagged = False
        """The one value is a tagged field."""
        self.run: list[tuple[str, str]] = []
        self.source = Source(
            Rows=Rows,
            one_byte=ONE_BYTE_UVARINTS,
            pack=pack,
            refer_to=refer_to,
            uvarint=uvarint,
            write_tag_section=write_tag_section,
        )

    def flush(self) -> None:
        if self.run:
            self.source.line(f"append({self.packed(self.run)})")
            self.run = []

    def packed(self, run: list[tuple[str, str]]) -> str:
        """An expression for the bytes of a run."""
        if all(code == "x" for _, code in run):
            return repr(bytes(len(run)))
        pack = self.source.packer("".join(code for _, code in run), "pack")
        return f"{pack}({', '.join(expression for expression, code in run if code != 'x')})"

    def struct(self, schema: Schema, source: str, where: str) -> None:
        """Write a struct; in flexible versions its tag section too. May leave a run open."""
        layout = Layout(schema, self.compiler.version, self.flexible)
        for field in layout.plain:
            nullable = field.nullable.has(self.compiler.version)
            self.value(f"{source}.{field.name}", field.type, nullable, f"{where}.{field.name}")
        if self.flexible:
            self.tag_section(layout, source, where)

    def tag_section(self, layout: Layout, source: str, where: str) -> None:
        line, block = self.source.line, self.source.block
        conditions = [self.differs(source, field) for field in layout.tagged]
        run, self.run = self.run, []
        with block(f"if {' or '.join([*conditions, f'{source}.unknown_tags'])}:"):
            if run:
                line(f"append({self.packed(run)})")
            line("known = []")
            for field, condition in zip(layout.tagged, conditions, strict=True):
                nullable = field.nullable.has(self.compiler.version)
                function = self.compiler.function(f"{where}.{field.name}", field.type, nullable=nullable)
                encode = self.source.constant(function, "encode_tag")
                with block(f"if {condition}:"):
                    line("inner, inner_chunks = [], []")
                    call = "yield from " if self.compiler.in_steps else ""
                    line(f"{call}{encode}({source}.{field.name}, inner, inner_chunks)")
                    line(f"known.append(({field.tag}, b''.join(inner_chunks + inner)))")
            line(f"append(write_tag_section(known, {source}.unknown_tags))")
        with block("else:"):
            line(f"append({self.packed([*run, ('', 'x')])})")

    def differs(self, source: str, field: Field) -> str:
        """A condition: the field is not at its default."""
        value, default = f"{source}.{field.name}", self.source.constant(field.default, field.name)
        if field.default is None:
            return f"{value} is not None"
        if field.default == () and isinstance(field.type, Array):
            return value
        if isinstance(field.type, Nested):
            # Decoded and defaulted values share the one default object, so this mostly ends at the first test.
            return f"({value} is not {default} and {value} != {default})"
        return f"{value} != {default}"

    def value(self, source: str, kind: Any, nullable: bool, where: str) -> None:
        """Write one value; values of fixed size wait in the run."""
        if isinstance(kind, Fixed):
            self.run.append((source, kind.code))
            return
        if isinstance(kind, Nested) and not nullable:
            local = self.local(source, "s")
            self.struct(kind.schema, local, where)
            return
        local = self.local(source, "x")
        if not nullable and not isinstance(kind, RecordBytes):
            self.there(local, kind, where)
            self.flush()
            return
        run, self.run = self.run, []
        with self.source.block(f"if {local} is None:"):
            self.run = [*run, self.null(kind)]
            self.flush()
        with self.source.block("else:"):
            self.run = run
            self.there(local, kind, where)
            self.flush()

    def local(self, source: str, stem: str) -> str:
        local = self.source.fresh(stem)
        self.source.line(f"{local} = {source}")
        return local

    def null(self, kind: Any) -> tuple[str, str]:
        if isinstance(kind, Nested):
            return ("0" if self.is_tagged else "-1"), "b"
        return ("", "x") if self.flexible else ("-1", length_code(kind, False))

    def there(self, source: str, kind: Any, where: str) -> None:
        """Write a value that is not null."""
        self.is_tagged = False
        line, block = self.source.line, self.source.block
        if isinstance(kind, Nested):
            self.run.append(("1", "b"))
            self.struct(kind.schema, source, where)
        elif isinstance(kind, Array):
            self.array(source, kind, where)
        elif isinstance(kind, Text):
            line(f"{source} = {source}.encode()")
            self.length(source, kind)
            line(f"append({source})")
        else:
            self.length(source, kind)
            with block(f"if len({source}) < {BY_REFERENCE_FROM}:"):
                line(f"append({source})")
            with block("else:"):
                line(f"refer_to({source}, parts, chunks)")

    def length(self, source: str, kind: Any) -> None:
        """Write a length or count with the run before the length."""
        line, block = self.source.line, self.source.block
        n = self.source.fresh("n")
        if not self.flexible:
            self.run.append((f"len({source})", length_code(kind, False)))
            self.flush()
            return
        run, self.run = self.run, []
        line(f"{n} = len({source}) + 1")
        if not run:
            line(f"append(one_byte[{n}] if {n} < 128 else uvarint({n}))")
            return
        with block(f"if {n} < 128:"):
            line(f"append({self.packed([*run, (n, 'B')])})")
        with block(f"elif {n} < 16384:"):
            line(f"append({self.packed([*run, (f'{n} & 127 | 128', 'B'), (f'{n} >> 7', 'B')])})")
        with block("else:"):
            line(f"append({self.packed(run)})")
            line(f"append(uvarint({n}))")

    def array(self, source: str, kind: Array, where: str) -> None:
        line, block = self.source.line, self.source.block
        self.length(source, kind)
        element = kind.element
        if isinstance(element, Fixed):
            if element.size == 16:
                line(f"append(b''.join({source}))")
            else:
                line(f"append(pack(f'>{{len({source})}}{element.code}', *{source}))")
            return
        item = self.source.fresh("v")
        if kind.may_be_rows and isinstance(element, Nested):
            stride = stride_of(element.schema, self.compiler.version, self.flexible)
            with block(f"if type({source}) is Rows and {source}.stride is {self.source.constant(stride, 'stride')}:"):
                line(f"append({source}.raw)")
                line(f"{source} = ()")
        number = self.source.fresh("i")
        in_steps = self.compiler.in_steps
        with block(f"for {number}, {item} in enumerate({source}):" if in_steps else f"for {item} in {source}:"):
            if in_steps:
                with block(f"if {number} & {STEP - 1} == {STEP - 1}:"):
                    line("yield")
            if isinstance(element, Nested):
                self.struct(element.schema, item, where)
            else:
                self.value(item, element, False, where)
            self.flush()
