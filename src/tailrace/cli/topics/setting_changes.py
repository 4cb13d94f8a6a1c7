"""Changes of settings on the command line: `--config NAME=VALUE` and `--delete-config NAME`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.model.settings import current_name, unknown_setting

if TYPE_CHECKING:
    from tailrace.client.admin.configs import ConfigEntry

Configs = Annotated[
    list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A setting; may be repeated.")
]
DeletedConfigs = Annotated[
    list[str] | None,
    typer.Option("--delete-config", metavar="NAME", help="A setting to reset to its default; repeatable."),
]


def parse_configs(words: Iterable[str]) -> dict[str, str]:
    """The settings of words `NAME=VALUE`. Raises typer.BadParameter."""
    configs = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{word!r} is not NAME=VALUE", param_hint="--config")
        configs[name] = value
    return configs


def changes_of(config: list[str] | None, delete_config: list[str] | None) -> dict[str, str | None]:
    """The new values by name; None: the default. Raises typer.BadParameter for a setting that is set and deleted."""
    changes: dict[str, str | None] = {**parse_configs(config or [])}
    for setting in delete_config or []:
        if setting in changes:
            raise typer.BadParameter(f"{setting} is set and deleted", param_hint="--delete-config")
        changes[setting] = None
    return changes


def check_known(entries: "Iterable[ConfigEntry]", names: Iterable[str], *, kind: str) -> None:
    """Raise KafkaError for an unknown setting: the cluster would delete it without an error."""
    known = [entry.name for entry in entries]
    for name in names:
        if current_name(name) not in known:
            raise unknown_setting(name, known, kind=kind)
