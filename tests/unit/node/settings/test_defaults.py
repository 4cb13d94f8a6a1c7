"""Defaults of settings stand once: at the reader, if the reader has defaults, else in the table of settings."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.coordinators.config import GroupConfig, TransactionConfig
from tailrace.model.settings import INT, attribute_name, setting
from tailrace.node.settings.config import NodeConfig
from tailrace.node.settings.table import BROKER_SETTINGS
from tailrace.replication.fetch_requests import ReplicaFetchConfig
from tailrace.server.partitions.cleaner import CleanerConfig
from tailrace.server.partitions.periodic_work import PeriodicWorkConfig
from tailrace.server.partitions.scrubber import ScrubberConfig

PACKAGE = Path(tailrace.__file__).parent
OF_ANOTHER_SETTING = {
    ("RaftConfig", "request_timeout_ms"): "controller.quorum.request.timeout.ms",
    ("RaftConfig", "fetch_max_bytes"): "controller.quorum.fetch.max.bytes",
    ("Coordinator", "node_id"): "a field of a message",
    ("plan_descriptors", "listeners"): "a number of listeners",
}
"""Names that equal a setting's name by chance."""


def stated_defaults(source: str) -> set[str]:
    """The settings for which a table spells a default itself."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    rows = (call.args for call in calls if ast.unparse(call.func) == "setting" and len(call.args) >= 3)
    return {
        name.value
        for name, _, default, *_ in rows
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and is_spelled(default)
    }


def is_spelled(default: ast.expr) -> bool:
    """Whether a default is a value of its own, and neither a name for one elsewhere nor "none"."""
    if isinstance(default, ast.Constant):
        return default.value is not None
    return isinstance(default, ast.BinOp | ast.UnaryOp | ast.Tuple) and bool(ast.unparse(default) != "()")


def spelled_by_readers(source: str) -> Iterator[tuple[str, str]]:
    """Fields and parameters that have a default: the class or function, and the name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and part.value is not None and is_spelled(part.value):
                    yield node.name, ast.unparse(part.target)
        elif isinstance(node, ast.FunctionDef):
            positional = [*node.args.posonlyargs, *node.args.args]
            with_default = positional[len(positional) - len(node.args.defaults) :]
            pairs = [*zip(with_default, node.args.defaults, strict=True)]
            pairs += [
                (argument, value)
                for argument, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                if value
            ]
            yield from ((node.name, argument.arg) for argument, value in pairs if is_spelled(value))


def test_no_default_of_the_table_stands_at_a_reader_too() -> None:
    tables = (PACKAGE / "node" / "settings").glob("*.py")
    stated = {attribute_name(name): name for path in tables for name in stated_defaults(path.read_text())}
    assert "num.io.threads" in stated.values()
    twice = [
        f"{path.relative_to(PACKAGE)}: {owner}.{name} is {stated[name]}"
        for folder in ("coordinators", "metadata", "net", "node", "raft", "replication", "server", "storage")
        for path in (PACKAGE / folder).rglob("*.py")
        for owner, name in spelled_by_readers(path.read_text())
        if name in stated and (owner, name) not in OF_ANOTHER_SETTING
    ]
    assert not twice


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("setting('a.b', INT, 3, 'doc')", {"a.b"}),
        ("setting('a.b', INT, 1 << 20, 'doc')", {"a.b"}),
        ("setting('a.b', INT, -1, 'doc', at_least=1)", {"a.b"}),
        ("setting('a.b', STRING, None, 'doc')", set()),
        ("setting('a.b', INT, Reader, 'doc')", set()),
        ("setting('a.b', INT, _LIMITS.b, 'doc')", set()),
    ],
)
def test_a_default_that_a_table_spells_is_found(source: str, names: set[str]) -> None:
    assert stated_defaults(source) == names


def test_defaults_of_readers_are_found() -> None:
    source = "class Config:\n    a_b: int = 3\n    c: int\ndef run(d, e=1, *, f=-1, g=None): ...\n"
    assert set(spelled_by_readers(source)) == {("Config", "a_b"), ("run", "e"), ("run", "f")}


def test_a_setting_takes_the_default_of_the_field_of_its_name() -> None:
    assert setting("group.max.size", INT, GroupConfig, "").default == GroupConfig().group_max_size
    with pytest.raises(KeyError):
        setting("group.max.sizes", INT, GroupConfig, "")


WITHOUT_SETTING = {"settings_of", "cleaner", "scrubber"}
"""Fields that are given to a reader beside the settings."""


@pytest.mark.parametrize(
    "reader", [GroupConfig, TransactionConfig, ReplicaFetchConfig, PeriodicWorkConfig, CleanerConfig, ScrubberConfig]
)
def test_every_field_of_a_reader_is_filled_with_its_setting(reader: type[Any]) -> None:
    names = {attribute_name(name): name for name in BROKER_SETTINGS}
    filled = [field.name for field in fields(reader) if field.name not in WITHOUT_SETTING]
    assert filled
    assert NodeConfig({}).fill(reader) == reader()
    for field_name in filled:
        name = names[field_name]
        other = _other_value(name)
        config = NodeConfig({name: other})
        assert getattr(config.fill(reader), field_name) == BROKER_SETTINGS[name].parse(other)


def _other_value(name: str) -> str:
    """A legal value that is not the default."""
    described = BROKER_SETTINGS[name]
    if described.one_of is not None:
        return next(word for word in described.one_of if word != described.default)
    if isinstance(described.default, bool):
        return str(not described.default).lower()
    assert isinstance(described.default, int | float)
    return str(described.default - 1 if described.default > 1 else described.default + 1)
