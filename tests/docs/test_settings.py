"""docs/settings.md is made from the tables of settings; REWRITE=1 writes it anew."""

import ast
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from docs.generated import check_generated
from tailrace.model.settings import Setting, Table, Value
from tailrace.model.topic_config import TOPIC_SETTINGS
from tailrace.node.settings.kafka import WITHOUT_EFFECT
from tailrace.node.settings.table import BROKER_SETTINGS, DEV_DEFAULTS
from tailrace.server.admin.config_entries import BROKER_NAMES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "settings.md"
SOURCES = ROOT / "src" / "tailrace"
_NO_LIMIT: tuple[Value, ...] = (2**63 - 1, 1.7976931348623157e308)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _shown(setting: Setting, value: Value) -> str:
    if value in _NO_LIMIT:
        return "no limit"
    text = setting.format(value)
    return f"`{text}`" if text else ""


def _rows(settings: Table, *, dynamic_mark: str) -> Iterable[tuple[str, ...]]:
    for name, setting in sorted(settings.items()):
        words = ", ".join(f"`{word}`" for word in setting.one_of or ())
        mark = dynamic_mark if setting.dynamic else ""
        yield (
            f"`{name}`{mark}",
            _shown(setting, setting.default),
            f"{setting.doc} One of {words}." if words else setting.doc,
        )


def broker_settings() -> str:
    return _table(("Setting", "Default", "Meaning"), _rows(BROKER_SETTINGS, dynamic_mark=" *"))


def topic_settings() -> str:
    return _table(("Setting", "Default", "Meaning"), _rows(TOPIC_SETTINGS, dynamic_mark=""))


def dev_defaults() -> str:
    rows = ((f"`{name}`", _shown(BROKER_SETTINGS[name], value)) for name, value in sorted(DEV_DEFAULTS.items()))
    return _table(("Setting", "Default"), rows)


GENERATED: dict[str, Callable[[], str]] = {
    "broker settings": broker_settings,
    "topic settings": topic_settings,
    "dev defaults": dev_defaults,
}


def test_the_tables_are_what_the_code_says() -> None:
    check_generated(PAGE, GENERATED)


def _is_read(name: str, code: str) -> bool:
    """Whether the node's code names this setting, or the attribute that has its value."""
    attribute = name.replace(".", "_")
    return f'"{name}"' in code or re.search(rf"\.{attribute}\b", code) is not None


def _functions(path: Path) -> str:
    source = path.read_text()
    nodes = ast.parse(source).body
    return "".join(ast.get_source_segment(source, node) or "" for node in nodes if isinstance(node, ast.FunctionDef))


def test_a_setting_that_nothing_reads_says_so() -> None:
    names = ("coordinators", "kafka", "logs", "network", "quorum", "table")
    tables = {SOURCES / "node" / "settings" / f"{name}.py" for name in names}
    tables |= {SOURCES / "model" / "topic_config.py", SOURCES / "server" / "admin" / "config_entries.py"}
    assert all(path.exists() for path in tables)
    readers = {SOURCES / "node" / "settings" / "quorum.py"}  # behind its table, the functions that read it
    others = {"testing", "client"}  # a client may ask for the settings of brokers, also of Kafka's; it obeys none
    code = "".join(map(_functions, sorted(readers))) + "".join(
        path.read_text()
        for path in sorted(SOURCES.rglob("*.py"))
        if path not in tables and others.isdisjoint(path.relative_to(SOURCES).parts)
    )
    topic_setting_of = {broker_name: topic for topic, names in BROKER_NAMES.items() for broker_name in names}
    only_kafkas = {setting.name for setting in WITHOUT_EFFECT}
    assert not {name for name in only_kafkas if f'"{name}"' in code}  # attributes of clients have some of their names
    settings = {
        name: setting for name, setting in {**BROKER_SETTINGS, **TOPIC_SETTINGS}.items() if name not in only_kafkas
    }
    idle = {
        name for name in settings if not _is_read(name, code) and not _is_read(topic_setting_of.get(name, name), code)
    }
    assert idle == {name for name, setting in settings.items() if "Accepted for Kafka's files" in setting.doc}
