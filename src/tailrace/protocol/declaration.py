"""Declarations of messages: the wire types, `field`, and the decorators that turn a class into a value with a schema.

Rules:
1. Fields are on the wire in the order in which they stand in the class; tagged fields follow by tag.
2. A field is present in the versions of its `versions`; in other versions the field is not written and reads as its
   default.
3. `X | None` may be null in every version, or only in the versions of `nullable`.
4. A tagged field is written only if its value differs from its default (KIP-482), and only in flexible versions.

Values are frozen for the type checker. At run time they are plain slots, because a check per assignment costs more than
the decoding itself; `protect_values` turns the check on, for tests.
"""

from collections.abc import Callable, Sequence
from inspect import get_annotations
from operator import attrgetter
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from tailrace.protocol.primitives import Buffer, UnknownTags

T = TypeVar("T")


class Versions(NamedTuple):
    """A range of versions, both ends included; empty if `first > last`."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "Versions":
        """The versions in Kafka's notation: `3`, `2-5`, `4+`, `none`."""
        if text == "none":
            return NO_VERSIONS
        if text.endswith("+"):
            return cls(int(text[:-1]), _MAX_VERSION)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def has(self, version: int) -> bool:
        return self.first <= version <= self.last


_MAX_VERSION = 0x7FFF
ALL_VERSIONS = Versions(0, _MAX_VERSION)
NO_VERSIONS = Versions(_MAX_VERSION, -1)
"""`first` is above every version: the hot lane only compares a version with `first`."""


class Fixed(NamedTuple):
    """A type of fixed size: its code in `struct` and its bytes."""

    code: str
    size: int


class Text(NamedTuple):
    """A string: UTF-8 behind its length."""


class Blob(NamedTuple):
    """Bytes behind their length; copied when decoded."""


class RecordBytes(NamedTuple):
    """Record batches behind their length; null in every version; never copied."""


class Array(NamedTuple):
    """Elements behind their count: a tuple, or if `may_be_rows` perhaps `rows.Rows` (declared as Sequence)."""

    element: "WireType"
    may_be_rows: bool = False


class Nested(NamedTuple):
    """A struct in place; if it may be null, a byte before the struct says whether the struct is there."""

    schema: "Schema"


WireType: TypeAlias = Fixed | Text | Blob | RecordBytes | Array | Nested

BOOL = Fixed("?", 1)

Int8: TypeAlias = Annotated[int, Fixed("b", 1)]
Int16: TypeAlias = Annotated[int, Fixed("h", 2)]
Int32: TypeAlias = Annotated[int, Fixed("i", 4)]
Int64: TypeAlias = Annotated[int, Fixed("q", 8)]
UInt16: TypeAlias = Annotated[int, Fixed("H", 2)]
UInt32: TypeAlias = Annotated[int, Fixed("I", 4)]
Float64: TypeAlias = Annotated[float, Fixed("d", 8)]
Uuid: TypeAlias = Annotated[bytes, Fixed("16s", 16)]
"""Exactly 16 bytes; `ZERO_UUID` means none."""
Records: TypeAlias = Annotated[Buffer | None, RecordBytes()]

ZERO_UUID = bytes(16)


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()


class Field(NamedTuple):
    """A field of a schema. `default` is REQUIRED if there is none."""

    name: str
    type: WireType
    versions: Versions
    nullable: Versions
    tag: int | None
    default: Any


class _FieldOptions(NamedTuple):
    versions: str
    tag: int | None
    nullable: str | None
    default: Any


@overload
def field(*, versions: str = "0+", tag: int | None = None, nullable: str | None = None, default: T) -> T: ...
@overload
def field(*, versions: str = "0+", tag: int | None = None, nullable: str | None = None) -> Any: ...
def field(*, versions: str = "0+", tag: int | None = None, nullable: str | None = None, default: Any = REQUIRED) -> Any:
    """The options of a field: the versions that have the field, its tag, the versions in which null is allowed, its
    default."""
    return _FieldOptions(versions, tag, nullable, default)


class Schema:
    """The declaration of a message or struct, and its compiled codecs, each compiled at its first use."""

    __slots__ = ("api_key", "cls", "decoders", "encoders", "fields", "flexible", "name", "versions")

    def __init__(
        self, name: str, fields: tuple[Field, ...], versions: Versions, flexible: Versions, api_key: int | None
    ) -> None:
        self.name = name
        self.fields = fields
        self.versions = versions
        self.flexible = flexible
        self.api_key = api_key
        self.cls: type = object
        self.encoders: dict[int, Callable[..., Any]] = {}
        self.decoders: dict[int, Callable[..., Any]] = {}

    def __repr__(self) -> str:
        return f"<schema {self.name}>"


def schema_of(cls: type) -> Schema:
    """The schema of a declared class."""
    schema: Schema = cls.__schema__  # type: ignore[attr-defined]
    return schema


def api_key_of(cls: type) -> int:
    """The API key of a request or response class."""
    key = schema_of(cls).api_key
    assert key is not None, f"{cls.__name__} is neither a request nor a response"
    return key


def unknown_tags(value: object) -> UnknownTags:
    """The tagged fields of this value (not of inner values) that its declaration does not know."""
    tags: UnknownTags = value.unknown_tags  # type: ignore[attr-defined]
    return tags


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def struct(cls: type[T]) -> type[T]:
    """A part of messages. A struct has no versions of its own: its fields have the versions of the message."""
    return _declare(cls, cls.__name__, ALL_VERSIONS, NO_VERSIONS, None)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def message(
    *, versions: str, flexible: str = "none", api_key: int | None = None, name: str | None = None
) -> Callable[[type[T]], type[T]]:
    """A whole message: a request, a response, or (without `api_key`) a record of an internal topic.

    `flexible` are the versions with compact lengths and tag sections; `name` is for errors, by default the class's.
    """

    def declare(cls: type[T]) -> type[T]:
        return _declare(cls, name or cls.__name__, Versions.parse(versions), Versions.parse(flexible), api_key)

    return declare


def replace(value: T, /, **changes: Any) -> T:
    """A copy of a message or struct in which some fields differ. Unknown tagged fields stay."""
    cls = type(value)
    fields = cls.__slots__  # type: ignore[attr-defined]
    strange = changes.keys() - set(fields)
    if strange:
        raise TypeError(f"{cls.__name__} has no field {', '.join(sorted(strange))}")
    return _rebuild(cls, tuple(changes.get(name, getattr(value, name)) for name in fields))


def positional(cls: type[T], *names: str) -> Callable[..., T]:
    """A function that makes values of a message or struct from these fields, in this order; every other field has its
    default.

    For values that are made by the thousand: a call with keywords takes three times as long. Raises TypeError if a
    field without a default is missing.
    """
    values: dict[str, Any] = {"_new": object.__new__, "_cls": cls}
    assigned = []
    for declared in schema_of(cls).fields:
        value = declared.name
        if declared.name not in names:
            if declared.default is REQUIRED:
                raise TypeError(f"{cls.__name__} needs {declared.name}")
            value = f"_{declared.name}"
            values[value] = declared.default
        assigned.append(f"    value.{declared.name} = {value}\n")
    head = f"def make({', '.join(names)}):\n    value = _new(_cls)\n"
    exec(f"{head}{''.join(assigned)}    value.unknown_tags = ()\n    return value\n", values)  # noqa: S102
    made: Callable[..., T] = values["make"]
    return made


def protect_values(enabled: bool = True) -> None:
    """Let an assignment to a field of a finished value fail at run time, not only in the type checker. For tests."""
    global _protected
    _protected = enabled
    for cls in _declared:
        _protect(cls, enabled)


_declared: list[type] = []
_protected = False


def _declare(cls: type[T], name: str, versions: Versions, flexible: Versions, api_key: int | None) -> type[T]:
    hints = get_annotations(cls)
    if any(isinstance(hint, str) for hint in hints.values()):
        hints = get_type_hints(cls, include_extras=True)
    fields = tuple(_declare_field(cls, field_name, hint) for field_name, hint in hints.items())
    schema = Schema(name, fields, versions, flexible, api_key)
    names = tuple(hints)
    body = {key: value for key, value in cls.__dict__.items() if key not in (*names, "__dict__", "__weakref__")}
    body |= {
        "__slots__": (*names, "unknown_tags"),
        "__match_args__": (),
        "__schema__": schema,
        "__fields_of__": staticmethod(attrgetter(*names, "unknown_tags")),
        "__init__": _compile_init_and_call,
        "__eq__": _equal,
        "__hash__": _hash,
        "__reduce__": _reduce,
    }
    body.setdefault("__repr__", _represent)
    # A class cannot get slots after its creation: the class is made again, as dataclasses do.
    declared: Any = type(cls.__name__, cls.__bases__, body)
    schema.cls = declared
    _declared.append(declared)
    if _protected:
        _protect(declared, True)
    made: type[T] = declared
    return made


def _declare_field(cls: type, name: str, hint: Any) -> Field:
    options = cls.__dict__.get(name, REQUIRED)
    if not isinstance(options, _FieldOptions):
        options = _FieldOptions("0+", None, None, options)
    versions = Versions.parse(options.versions)
    if options.default is REQUIRED and (versions != ALL_VERSIONS or options.tag is not None):
        raise TypeError(f"{cls.__name__}.{name} is not in every version, so it needs a default")
    wire, optional = _wire_type(hint, f"{cls.__name__}.{name}")
    if options.nullable is not None:
        nullable = Versions.parse(options.nullable)
    else:
        nullable = ALL_VERSIONS if optional else NO_VERSIONS
    return Field(name, wire, versions, nullable, options.tag, options.default)


_PLAIN_TYPES: dict[Any, WireType] = {bool: BOOL, str: Text(), bytes: Blob(), float: Fixed("d", 8)}


def _wire_type(hint: Any, where: str) -> tuple[WireType, bool]:
    """The wire type of an annotation, and whether None is allowed."""
    origin = get_origin(hint)
    if origin is Annotated:
        metadata = hint.__metadata__[0]
        return metadata, isinstance(metadata, RecordBytes)
    if origin in (Union, UnionType):
        inner = [part for part in get_args(hint) if part is not type(None)]
        if len(inner) == 1:
            return _wire_type(inner[0], where)[0], True
    if origin is tuple:
        element, ellipsis = get_args(hint)
        assert ellipsis is ...
        return Array(_wire_type(element, where)[0]), False
    if origin is Sequence:
        return Array(_wire_type(get_args(hint)[0], where)[0], may_be_rows=True), False
    if hint in _PLAIN_TYPES:
        return _PLAIN_TYPES[hint], False
    if hasattr(hint, "__schema__"):
        return Nested(hint.__schema__), False
    raise TypeError(f"{where}: {hint!r} has no form on the wire")


def _compile_init_and_call(self: Any, **values: Any) -> None:
    """Stands in for `__init__` until the first value is made: one process uses few of all messages."""
    cls = type(self)
    names: dict[str, Any] = {}
    parameters, assignments = [], []
    for declared in schema_of(cls).fields:
        if declared.default is REQUIRED:
            parameters.append(declared.name)
        else:
            names[f"_{declared.name}"] = declared.default
            parameters.append(f"{declared.name}=_{declared.name}")
        assignments.append(f"    self.{declared.name} = {declared.name}\n")
    signature = f"self, *, {', '.join(parameters)}" if parameters else "self"
    exec(f"def __init__({signature}):\n{''.join(assignments)}    self.unknown_tags = ()\n", names)  # noqa: S102
    cls.__init__ = names["__init__"]
    cls.__init__(self, **values)


def _equal(self: Any, other: Any) -> bool:
    if type(other) is not type(self):
        return False
    same: bool = self.__fields_of__(self) == other.__fields_of__(other)
    return same


def _hash(self: Any) -> int:
    return hash(self.__fields_of__(self))


_NOT_SHOWN: Final = frozenset(
    ("secret", "directory_secret", "auth_bytes", "hmac", "salt", "salted_password", "stored_key", "server_key")
)
"""Fields that no log line may contain."""


def _represent(self: Any) -> str:
    named = (declared.name for declared in self.__schema__.fields if declared.name not in _NOT_SHOWN)
    shown = [f"{name}={getattr(self, name)!r}" for name in named]
    if self.unknown_tags:
        shown.append(f"unknown_tags={self.unknown_tags!r}")
    return f"{type(self).__name__}({', '.join(shown)})"


def _reduce(self: Any) -> tuple[Any, ...]:
    return _rebuild, (type(self), tuple(getattr(self, name) for name in self.__slots__))


def _rebuild(cls: type[T], values: tuple[Any, ...]) -> T:
    value = object.__new__(cls)
    for name, item in zip(cls.__slots__, values, strict=True):  # type: ignore[attr-defined]
        setattr(value, name, item)
    return value


def _protect(cls: Any, enabled: bool) -> None:
    if enabled:
        cls.__setattr__, cls.__delattr__ = _assign_once, _refuse_delete
    elif "__setattr__" in cls.__dict__:
        del cls.__setattr__, cls.__delattr__


def _assign_once(self: object, name: str, value: object) -> None:
    # The constructor sets each slot once; a change sets a slot again.
    if hasattr(self, name):
        raise AttributeError(f"{type(self).__name__}.{name} cannot be assigned: messages are values")
    object.__setattr__(self, name, value)


def _refuse_delete(self: object, name: str) -> None:
    raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted: messages are values")
