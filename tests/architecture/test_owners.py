"""State that its owner alone writes: all ways in which it changes are in one file (decision 0095)."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from architecture.page import ROOT
from tailrace.fetch_session.session import FetchSession, SessionOwner, SessionPartition

SOURCE: Final = ROOT / "src" / "tailrace"
OWNER: Final = SOURCE / "fetch_session" / "session.py"
READERS: Final = ("tailrace.fetch_session.session", "tailrace.fetch_session.session_cache")
"""Modules through which a file gets at sessions."""
MUTATORS: Final = frozenset(
    ("add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update")
)


def state() -> frozenset[str]:
    """The attributes of a session and of its partitions."""
    session = FetchSession(
        1,
        SessionOwner("", "", -1),
        client=None,
        is_privileged=False,
        uses_topic_ids=False,
        client_id="",
        client_host="",
        now_ms=0,
    )
    return frozenset((*vars(session), *SessionPartition.__slots__))


def imports(tree: ast.Module) -> set[str]:
    return {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}


def written(tree: ast.Module, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Lines that set, delete or change such an attribute of another object than `self`."""
    for node in ast.walk(tree):
        found: ast.expr | None = None
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            found = node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            found = node.func.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            yield node.lineno, node.func.id
        while isinstance(found, ast.Subscript):
            found = found.value
        if not isinstance(found, ast.Attribute) or found.attr not in names:
            continue
        if not (isinstance(found.value, ast.Name) and found.value.id == "self"):
            yield found.lineno, found.attr


@pytest.mark.parametrize(
    "code",
    [
        "session.listener = None",
        "self._session.is_busy = True",
        "watcher.by = session.listener = watcher",
        "found.rank, found.view = 1, None",
        "session.saved_bytes += 1",
        "session.due[partition] = None",
        "del session.due[partition]",
        "session.missing.pop(partition)",
        "setattr(session, name, 1)",
    ],
)
def test_a_write_is_found(code: str) -> None:
    assert list(written(ast.parse(code), state()))


@pytest.mark.parametrize("code", ["self.epoch = 1", "before = session.epoch", "session.begin()", "given.append(view)"])
def test_nothing_else_is_taken_for_a_write(code: str) -> None:
    assert not list(written(ast.parse(code), state()))


def test_a_fetch_session_is_written_in_its_own_file_alone() -> None:
    names, files = state(), 0
    faults: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        if path == OWNER or imports(tree).isdisjoint(READERS):
            continue
        files += 1
        faults += [f"{place(path)}:{line} writes `{name}`" for line, name in written(tree, names)]
    assert files >= 6, "the readers of sessions have moved"
    assert not faults, f"a transition is a method of the session: {faults}"


def place(path: Path) -> str:
    return str(path.relative_to(SOURCE))
