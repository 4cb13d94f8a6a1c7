"""A reader of docs/architecture.md finds the function behind a behaviour in two steps: a row, then the row's module."""

import ast
import inspect
import re
import textwrap
import tomllib
from typing import NamedTuple

import pytest

from architecture.page import PAGE, ROOT, in_order, resolve, rows, subjects

pytestmark = pytest.mark.always
"""A row breaks by a change of another file, so a row in turn would break unseen; all rows take seconds."""

FIRST_SCREEN_LINES = 45


class Behaviour(NamedTuple):
    question: str
    room: str
    function: str
    mark: str


BEHAVIOURS = [Behaviour(row[0], *(cell.strip("`") for cell in row[1:])) for row in rows("Where a behaviour lives")]
PLACES = {*subjects("Layers"), *subjects("The rooms of the server")} - {"server"}
"""A package; in the server, a room of it."""


def _body(function: str) -> list[ast.stmt]:
    """The statements of a function or method, without its docstring. The function must be where the name says."""
    module, found = resolve(function)
    found = found.fget if isinstance(found, property) else found
    assert inspect.isfunction(found), f"{function} is no function"
    assert found.__module__ == module, f"{function} comes from {found.__module__}"
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(found))).body
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    return definition.body[ast.get_docstring(definition) is not None :]


def _names(statements: list[ast.stmt]) -> set[str]:
    """The identifiers of code: neither comments nor texts count."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }


def _faults(behaviour: Behaviour) -> list[str]:
    """The errors of a row."""
    faults = []
    if behaviour.room not in PLACES:
        faults.append(f"{behaviour.room} has no row in the tables of packages and rooms")
    if not behaviour.function.startswith(f"{behaviour.room}."):
        faults.append(f"{behaviour.function} is not in {behaviour.room}")
    if behaviour.mark not in _names(_body(behaviour.function)):
        faults.append(f"{behaviour.mark} does not occur in {behaviour.function}")
    return faults


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.question)
def test_a_behaviour_is_where_its_row_says(behaviour: Behaviour) -> None:
    assert _faults(behaviour) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"room": "server"},
        {"room": "replication"},
        {"function": "server.waiters.LongPolls.expired"},
        {"function": "server.dispatch.Dispatcher.on_frame"},
        {"mark": "_plan"},
        {"mark": "turn"},
    ],
    ids=str,
)
def test_a_wrong_row_is_found_out(wrong: dict[str, str]) -> None:
    right = Behaviour("Where does a long poll wake?", "server.waiters", "server.waiters.LongPolls.woken", "_plan_retry")
    assert right in BEHAVIOURS
    assert _faults(right._replace(**wrong)) != []


def test_the_behaviours_lead_to_most_of_the_house() -> None:
    assert len(BEHAVIOURS) >= 30
    assert len({behaviour.question for behaviour in BEHAVIOURS}) == len(BEHAVIOURS)
    rooms = {behaviour.room for behaviour in BEHAVIOURS}
    assert rooms >= {"net", "raft", "storage", "metadata", "replication", "coordinators", "node", "client"}
    assert len([room for room in rooms if room.startswith("server.")]) >= 8


def test_the_modules_of_a_word_exist() -> None:
    words = rows("The same word in several places")
    assert [row[0] for row in words] == sorted({row[0] for row in words}), "sorted, each word once"
    for word, places in words:
        modules = re.findall(r"`([^`]+)`", places)
        assert len(modules) > 1, f"{word} has one home"
        assert [resolve(module)[0] for module in modules] == [f"tailrace.{module}" for module in modules]


def test_the_first_screen_leads_to_each_table() -> None:
    first_screen = "\n".join(PAGE.splitlines()[:FIRST_SCREEN_LINES])
    links = set(re.findall(r"\]\(#([^)]+)\)", first_screen))
    titles = re.findall(r"^##+ (.*)$", PAGE, re.MULTILINE)
    assert {"where-a-behaviour-lives", "layers", "the-rooms-of-the-server", "the-journeys", "where-things-are"} <= links
    assert links <= {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_table_of_rooms_is_that_of_the_layers_in_force() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == ["tailrace.server"])
    assert in_order([name.removeprefix("server.") for name in subjects("The rooms of the server")], layers)


def test_the_table_of_directories_names_all_at_the_root() -> None:
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    there = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name not in ignored}
    assert set(subjects("The directories")) == there
