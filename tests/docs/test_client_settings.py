"""docs/reference/client-settings.md is made from the settings of the clients; REWRITE=1 writes it anew."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from docs.documented_fields import documented_fields
from docs.generated import check_generated
from tailrace.client.reader_settings import (
    ASSIGNMENT_STRATEGIES,
    ConsumerSettings,
    Isolation,
    KeyedConsumerSettings,
    RangedFetchSettings,
    ReaderSettings,
    Reset,
)
from tailrace.client.security.sasl_settings import SaslSettings
from tailrace.client.security.tls_settings import TlsSettings
from tailrace.client.setting_fields import INT32, INT64
from tailrace.client.settings import ClientSettings
from tailrace.client.writer_settings import Compression, ProducerSettings
from tailrace.model.errors import KafkaError
from tailrace.model.views import FAN_OUTS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "client-settings.md"
KINDS: dict[str, type[TlsSettings]] = {
    "of all clients": ClientSettings,
    "of encryption, of all clients": TlsSettings,
    "of authentication, of all clients": SaslSettings,
    "of a producer": ProducerSettings,
    "of all consumers": ReaderSettings,
    "of a consumer": ConsumerSettings,
    "of a keyed consumer": KeyedConsumerSettings,
    "of a reader of ranges": RangedFetchSettings,
}
WORDS: dict[str, tuple[object, ...]] = {
    "acks": ("all", "1", "0"),
    "auto_offset_reset": get_args(Reset),
    "compression": get_args(Compression),
    "group_protocol": ("consumer", "classic"),
    "group_remote_assignor": ("uniform", "range"),
    "isolation": get_args(Isolation),
    "on_corrupt": ("raise", "skip"),
    "partition_assignment_strategy": ASSIGNMENT_STRATEGIES,
}
FORMS = {
    "bootstrap_servers": "text, or list of texts",
    "slots": f"{FAN_OUTS[0]}, 4, ... {FAN_OUTS[-1]}, or `auto`",
    "topics": "list of texts",
    "until": "`end`, offset, datetime, or dict by partition",
}
UNITS = {
    "ms": ("_ms",),
    "bytes": ("_bytes", "_memory", "_request_size", "batch_size", "_bytes_in_hand"),
    "records": ("_records", "_records_in_hand"),
    "%": ("_percent",),
}


def own_fields(cls: type[TlsSettings]) -> "list[Field[Any]]":
    """The settings that this class adds, or gives another default, without aliases."""
    return [
        setting for setting in fields(cls) if setting.name in vars(cls)["__annotations__"] and not alias_of(setting)
    ]


def alias_of(setting: "Field[Any]") -> str | None:
    name = setting.metadata.get("alias_of")
    return None if name is None else str(name)


def names(cls: type[TlsSettings], setting: "Field[Any]") -> Iterator[str]:
    """The keywords of this setting."""
    yield setting.name
    yield from (other.name for other in fields(cls) if alias_of(other) == setting.name)


def unit(name: str) -> str:
    return next((unit for unit, ends in UNITS.items() if name.endswith(ends)), "")


def kind(setting: "Field[Any]") -> str:
    """The kind of the values, with unit and range."""
    if setting.name in FORMS:
        return FORMS[setting.name]
    if setting.name in WORDS:
        return ", ".join(f"`{word}`" for word in WORDS[setting.name])
    if setting.type in (int, int | None):
        return f"{unit(setting.name) or 'number'}, {_range(setting)}"
    if setting.type in (bool, bool | None):
        return "flag"
    return "function" if setting.metadata.get("is_function") else "text"


def _range(setting: "Field[Any]") -> str:
    least, most = setting.metadata.get("least", 0), setting.metadata.get("most", INT32)
    if setting.name == "breaker_failure_percent":
        return f"{least} to 99"
    return f"{least} or more, long" if most == INT64 else f"{least} or more"


def default(setting: "Field[Any]") -> str:
    value = setting.default
    if value is MISSING:
        return "none: must be given"
    if value is None:
        return "None"
    if isinstance(value, tuple):
        return ", ".join(f"`{word}`" for word in value) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"`{value}`" if value != "" else "empty"


def table(cls: type[TlsSettings]) -> str:
    docs = documented_fields(ClientSettings) | documented_fields(cls)
    lines = ["| Setting | In a mapping | Kind | Default | Meaning |", "| --- | --- | --- | --- | --- |"]
    for setting in own_fields(cls):
        keywords = list(names(cls, setting))
        cells = (
            ", ".join(f"`{name}`" for name in keywords),
            ", ".join(f"`{name.replace('_', '.')}`" for name in keywords),
            kind(setting),
            default(setting),
            docs[setting.name],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "".join(f"{line}\n" for line in lines)


GENERATED: dict[str, Callable[[], str]] = {name: partial(table, cls) for name, cls in KINDS.items()}


def test_the_tables_are_what_the_code_says() -> None:
    check_generated(PAGE, GENERATED)


def test_each_setting_of_each_client_is_on_the_page() -> None:
    text = PAGE.read_text()
    absent = {setting.name for cls in KINDS.values() for setting in fields(cls) if f"`{setting.name}`" not in text}
    assert absent == set()


@pytest.mark.parametrize("cls", [cls for cls in KINDS.values() if issubclass(cls, ClientSettings)])
def test_a_word_of_the_page_is_taken_and_another_word_is_refused(cls: type[ClientSettings]) -> None:
    given: dict[str, Any] = {"group": "g", "topics": ("orders",)} if issubclass(cls, ReaderSettings) else {}
    for setting in own_fields(cls):
        if setting.name not in WORDS or setting.name == "group_remote_assignor":  # the broker may have other assignors
            continue
        for word in WORDS[setting.name]:
            value = (word,) if setting.name == "partition_assignment_strategy" else word
            cls("127.0.0.1:1", **(given | {setting.name: value}))
        with pytest.raises(KafkaError):
            cls("127.0.0.1:1", **(given | {setting.name: "other"}))
