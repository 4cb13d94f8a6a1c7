"""Settings with Kafka's names: what a table of settings knows, and how text becomes a value.

A table is a mapping from the dotted name to a `Setting`. `parse` is strict: an unknown name is refused with the
nearest known name, a value outside its limits with the limits. Code INVALID_CONFIG (40) throughout.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from tailrace.model.errors import ErrorCode, KafkaError

Value = bool | int | float | str | tuple[str, ...] | None


class SettingType(IntEnum):
    """The type as reported by DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


BOOLEAN: Final = SettingType.BOOLEAN
CLASS: Final = SettingType.CLASS
DOUBLE: Final = SettingType.DOUBLE
INT: Final = SettingType.INT
LIST: Final = SettingType.LIST
LONG: Final = SettingType.LONG
PASSWORD: Final = SettingType.PASSWORD
SHORT: Final = SettingType.SHORT
STRING: Final = SettingType.STRING


_INTEGRAL = {
    SettingType.SHORT: (-(2**15), 2**15 - 1),
    SettingType.INT: (-(2**31), 2**31 - 1),
    SettingType.LONG: (-(2**63), 2**63 - 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting: its Kafka name, type, default and limits."""

    name: str
    type: SettingType
    default: Value
    doc: str
    at_least: float | None = None
    """The default may lie below this limit: -1 where every other value is positive."""
    at_most: float | None = None
    one_of: tuple[str, ...] | None = None
    """The legal values; for a LIST, of each element."""
    throttled_replicas: bool = False
    """The value is a LIST of replicas, with an item PARTITION:BROKER per replica, or `*` for every replica."""
    dynamic: bool = False
    """May change while the node runs."""
    sensitive: bool = False
    """The value is never shown."""

    def parse(self, text: str) -> Value:
        """The value this text stands for. Raises KafkaError(INVALID_CONFIG) that names setting, value and limits."""
        try:
            value = _PARSERS[self.type](text.strip())
        except ValueError:
            raise self._refusal(text, _EXPECTED.get(self.type, "cannot be read")) from None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self._check_limits(text, value)
        elif self.one_of is not None:
            for word in value if isinstance(value, tuple) else (str(value),):
                if word not in self.one_of:
                    raise self._refusal(text, f"must be one of {', '.join(self.one_of)}")
        if self.throttled_replicas and value != ("*",) and isinstance(value, tuple):
            self._check_replicas(text, value)
        return value

    def _check_replicas(self, text: str, words: tuple[str, ...]) -> None:
        if not all(map(_REPLICA.fullmatch, words)):
            raise self._refusal(text, "must be * or PARTITION:BROKER,PARTITION:BROKER...")

    def _check_limits(self, text: str, value: float) -> None:
        low, high = _INTEGRAL.get(self.type, (float("-inf"), float("inf")))
        low = low if self.at_least is None else max(low, self.at_least)
        high = high if self.at_most is None else min(high, self.at_most)
        if not low <= value <= high and value != self.default:
            or_default = f", or {self.default}" if isinstance(self.default, int) and self.default < low else ""
            raise self._refusal(text, f"must be between {low} and {high}{or_default}")

    def _refusal(self, text: str, why: str) -> KafkaError:
        shown = "[hidden]" if self.sensitive else repr(text)
        return KafkaError(ErrorCode.INVALID_CONFIG, f"{self.name}={shown}: {why}")

    def format(self, value: Value) -> str | None:
        """The value as Kafka writes it, or None for no value and for a sensitive value."""
        if value is None or self.sensitive:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


_REPLICA: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")

_EXPECTED = {
    SettingType.BOOLEAN: "say true or false",
    SettingType.DOUBLE: "must be a number",
    **dict.fromkeys(_INTEGRAL, "must be a whole number"),
}


def parse_boolean(text: str) -> bool:
    """The flag that this text stands for, in any case. Raises ValueError."""
    words = {"true": True, "false": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parse_whole(text: str) -> int:
    """The whole number that this text stands for, as in Java. Raises ValueError."""
    return int(_without_underscores(text))


def _parse_number(text: str) -> float:
    return float(_without_underscores(text))


def _without_underscores(text: str) -> str:
    """The text. Raises ValueError for 1_000, which is a number in Python and not in Java."""
    if "_" in text:
        raise ValueError(text)
    return text


_PARSERS: Mapping[SettingType, Callable[[str], Value]] = {
    SettingType.BOOLEAN: parse_boolean,
    SettingType.STRING: str,
    SettingType.INT: parse_whole,
    SettingType.SHORT: parse_whole,
    SettingType.LONG: parse_whole,
    SettingType.DOUBLE: _parse_number,
    SettingType.LIST: _parse_list,
    SettingType.CLASS: str,
    SettingType.PASSWORD: str,
}

Table = Mapping[str, Setting]


def setting(
    name: str,
    kind: SettingType,
    default: Value | type[Any],
    doc: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    one_of: tuple[str, ...] | None = None,
    dynamic: bool = False,
    sensitive: bool = False,
) -> Setting:
    """A row of a table of settings.

    `default` may be a dataclass, the reader of the setting: then the default of its field of the same name counts.
    """
    return Setting(
        name=name,
        type=kind,
        default=default.__dataclass_fields__[attribute_name(name)].default if isinstance(default, type) else default,
        doc=doc,
        at_least=at_least,
        at_most=at_most,
        one_of=one_of,
        dynamic=dynamic,
        sensitive=sensitive,
    )


def table_of(*settings: Setting) -> Table:
    """The settings by name. Names must be distinct."""
    table = {setting.name: setting for setting in settings}
    assert len(table) == len(settings), "two settings share a name"
    return table


FORMER_NAMES: Final[Mapping[str, str]] = {
    "group.key.sharing.enable": "group.key.ranges.enable",
    "key.sharing.enable": "key.ranges.enable",
    "key.sharing.index": "key.ranges.index",
}
"""The current names of settings by the names that are deprecated: accepted in this release, for the last time (decision
0093). Nothing is shown or stored under a former name."""


def current_name(name: str) -> str:
    """The name of the setting that this name stands for."""
    return FORMER_NAMES.get(name, name)


def find(table: Table, name: str, *, kind: str = "") -> Setting:
    """The setting of this name, current or former. Raises `unknown_setting` with the names of the table."""
    current = current_name(name)
    if current in table:
        return table[current]
    raise unknown_setting(name, table, kind=kind)


def unknown_setting(name: str, known: Iterable[str], *, kind: str = "") -> KafkaError:
    """The error INVALID_CONFIG for an unknown setting; its message offers the nearest known name.

    With the kind of a resource, such as `topic`, the message begins with Kafka's words, which programs look for.
    """
    near = nearest(name, known)
    hint = f"; did you mean {near}?" if near else ""
    fault = f"Unknown {kind} config name: {name}" if kind else f"unknown setting {name!r}"
    return KafkaError(ErrorCode.INVALID_CONFIG, fault + hint)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a mistyped name probably means; None without a name so near."""
    import difflib  # not at the top: each start of a client would pay for it

    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def parse_all(table: Table, texts: Mapping[str, str]) -> dict[str, Value]:
    """Every given setting parsed, by its current name; defaults are not filled in."""
    found = ((find(table, name), text) for name, text in texts.items())
    return {setting.name: setting.parse(text) for setting, text in found}


def attribute_name(name: str) -> str:
    """`retention.ms` -> `retention_ms`: how a dataclass of settings spells its fields."""
    return name.replace(".", "_").replace("-", "_")
