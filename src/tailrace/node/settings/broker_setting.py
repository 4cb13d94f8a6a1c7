"""One row of a table of settings, in few words."""

from typing import Any, Final

from tailrace.model.settings import Setting, SettingType, Value, attribute_name

BOOLEAN: Final = SettingType.BOOLEAN
CLASS: Final = SettingType.CLASS
DOUBLE: Final = SettingType.DOUBLE
INT: Final = SettingType.INT
LIST: Final = SettingType.LIST
LONG: Final = SettingType.LONG
SHORT: Final = SettingType.SHORT
STRING: Final = SettingType.STRING


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
) -> Setting:
    """A setting of a node: see `model.settings.Setting`.

    `default` may be a dataclass, the reader of the setting: the default is then that of its field of the same name.
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
    )
