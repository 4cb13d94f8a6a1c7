"""The fields of settings of clients: kinds, ranges, names beside the own name, and the checks of values. Pure.

1. A field has the name of the public keyword. With dots for underscores it is Kafka's name, which messages show.
2. A number is a whole number between a lowest and a highest value. A number of numpy becomes an int.
3. A text stands for a number or a flag as in Kafka's files: `"5"`, `"false"`. So `Producer({"linger.ms": "5"})` works.
4. An alias is a second keyword for a field, mostly Kafka's long name: `group_id` for `group`.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import Field, field, fields
from operator import index
from typing import Any, Final, SupportsIndex

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.settings import attribute_name, parse_boolean, parse_whole

INT32: Final = 2**31 - 1
INT64: Final = 2**63 - 1

_NUMBERS: Final[tuple[Any, ...]] = (int, int | None)
_FLAGS: Final[tuple[Any, ...]] = (bool, bool | None)
_TEXTS: Final[tuple[Any, ...]] = (str, str | None)

_A_FUNCTION: Final = {
    **dict.fromkeys(("key_serializer", "value_serializer"), " that returns bytes, such as tailrace.json.serialize"),
    **dict.fromkeys(("key_deserializer", "value_deserializer"), " of bytes, such as tailrace.json.deserialize"),
    "decode": " of bytes, such as tailrace.json.deserialize",
}
"""Examples for settings that are functions, by the name of the setting."""


def number(default: Any, *, least: int = 0, most: int = INT32, is_ours: bool = False, why: str = "") -> Any:
    """A field of a number. `is_ours`: Kafka has no such setting, and messages show its name with underscores.

    `why` stands in the message about a number that is too small, in place of the lowest value.
    """
    return field(default=default, metadata={"least": least, "most": most, "is_ours": is_ours, "why": why})


def function() -> Any:
    """A field of a function that the user may give."""
    return field(default=None, metadata={"is_function": True})


def secret() -> Any:
    """A field of a text that is never shown."""
    return field(default=None, repr=False, metadata={"is_secret": True})


def alias(of: str) -> Any:
    """A field that is a second keyword of the field `of`."""
    return field(default=None, repr=False, compare=False, metadata={"alias_of": of})


def invalid(detail: str) -> KafkaError:
    """The error of a setting."""
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)


def resolve_aliases(settings: Any) -> None:
    """Move the values of aliases to their fields. Raises KafkaError INVALID_CONFIG for two values of a field."""
    known = {setting.name: setting for setting in fields(settings)}
    for setting in known.values():
        target = setting.metadata.get("alias_of")
        value = getattr(settings, setting.name) if target else None
        if target is None or value is None:
            continue
        if getattr(settings, target) not in (known[target].default, value):
            raise invalid(f"{target} and {setting.name} are names of the same setting, with two values; give one")
        object.__setattr__(settings, target, value)
        object.__setattr__(settings, setting.name, None)


def checked(setting: "Field[Any]", value: object) -> object:
    """The value in the kind of this field. Raises KafkaError INVALID_CONFIG unless it has this kind, in its range."""
    kind: Any = setting.type
    if value is None and kind in (int | None, str | None, bool | None):
        return None
    if kind in _NUMBERS:
        return _number(setting, value)
    name = _shown(setting)
    if setting.metadata.get("is_function") and value is not None and not callable(value):
        raise invalid(f"{name} {value!r}; say a function{_A_FUNCTION.get(setting.name, '')}")
    if kind in _FLAGS and not isinstance(value, bool):
        with suppress(ValueError):
            if isinstance(value, str):
                return parse_boolean(value.strip())
        raise invalid(f"{name} {value!r}; say True or False")
    if kind in _TEXTS and not isinstance(value, str):
        shown = "[hidden]" if setting.metadata.get("is_secret") else repr(value)
        raise invalid(f"{name} {shown}; say a text")
    return value


def _number(setting: "Field[Any]", given: object) -> int:
    name = _shown(setting)
    value = given
    with suppress(ValueError, TypeError):  # an array of numpy has an index that raises
        if isinstance(given, str):
            value = parse_whole(given.strip())
        elif isinstance(given, SupportsIndex) and not isinstance(given, int):
            value = index(given)
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(f"{name} {given!r}; say a whole number")
    least, most = setting.metadata.get("least", 0), setting.metadata.get("most", INT32)
    if value < least:
        raise invalid(f"{name} {value}; {setting.metadata.get('why') or f'at least {least}'}")
    if value > most:
        raise invalid(f"{name} {value}; at most {most}")
    return value


def _shown(setting: "Field[Any]") -> str:
    return setting.name if setting.metadata.get("is_ours") else setting.name.replace("_", ".")


def keywords_of(properties: Mapping[str, object]) -> dict[str, object]:
    """The keywords of settings by Kafka's dotted names. Raises KafkaError INVALID_CONFIG for a setting that has two
    names in the mapping."""
    keywords: dict[str, object] = {}
    for name, value in properties.items():
        keyword = attribute_name(str(name))
        if keyword in keywords:
            raise invalid(f"{name} is there twice, with dots and with underscores")
        keywords[keyword] = value
    return keywords
