"""docs/architecture.md is true: its names exist, its arrows are imports, its table is the layers in force."""

import asyncio
import inspect
import re
import tomllib
from functools import cache, partial

import grimp
import pytest

from architecture.bindings import Bindings, built, holds
from architecture.page import PAGE, ROOT, in_order, resolve, section, subjects
from tailrace.node.process import event_loop_factory

pytestmark = pytest.mark.always
"""A row breaks by a change of another file, so a row in turn would break unseen; all rows take seconds."""

STEPS = [
    line.split(maxsplit=3)[:3]
    for block in re.findall(r"^```journey\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("tailrace", cache_dir=None)


def _home(name: str) -> str:
    """The module that holds the thing: where a class is defined, not where it is passed on."""
    module, found = resolve(name)
    return getattr(found, "__module__", module) if isinstance(found, type) else module


def _modules(name: str) -> set[str]:
    module, _ = resolve(name)
    return {module, _home(name)}


def _imports(importer: str, imported: set[str]) -> bool:
    return any(_graph().direct_import_exists(importer=importer, imported=module) for module in imported)


def test_there_are_journeys() -> None:
    assert len(STEPS) > 30
    assert {arrow for _, arrow, _ in STEPS} == {"->", "~>"}


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Bindings:
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        return runner.run(built(tmp_path_factory.mktemp("nodes")))


def _classes(name: str) -> list[type]:
    """The class of this name, or all that its module defines."""
    module, found = resolve(name)
    if isinstance(found, type):
        return [found]
    return [value for value in vars(found).values() if isinstance(value, type) and value.__module__ == module]


def _is_bound(held: Bindings, left: str, right: str) -> bool:
    """Whether an object of the left name holds an object of the right name.

    A port holds nothing itself: an object does that uses the port, and what it holds has the methods of the port.
    """
    rights = _classes(right)
    for kind in _classes(left):
        if not getattr(kind, "_is_protocol", False):
            if holds(held, partial(lambda holding, holder: issubclass(holder, holding), kind), rights):
                return True
            continue
        users = _graph().find_modules_that_directly_import(kind.__module__)
        methods = [name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")]
        filling = [right for right in rights if all(hasattr(right, method) for method in methods)]
        if filling and holds(held, partial(lambda users, holder: holder.__module__ in users, users), filling):
            return True
    return False


@pytest.mark.parametrize("step", [step for step in STEPS if step[1] == "->"], ids=" ".join)
def test_every_import_of_a_step_is_there(step: list[str]) -> None:
    left, _, right = step
    sources, targets = _modules(left), _modules(right)
    if sources & targets:
        _, found = resolve(left)
        assert isinstance(found, type), f"{left} and {right} are one module: name the class on the left"
        name = right.rpartition(".")[2]
        assert re.search(rf"\b{name}\b", inspect.getsource(found)), f"{left} does not name {right}"
        return
    assert any(_imports(source, targets) for source in sources), f"{left} does not import {right}"


@pytest.mark.parametrize("step", [step for step in STEPS if step[1] == "~>"], ids=" ".join)
def test_every_binding_of_a_step_is_there_in_running_nodes(step: list[str], held: Bindings) -> None:
    left, _, right = step
    sources, targets = _modules(left), _modules(right)
    assert not any(_imports(source, targets) for source in sources), f"{left} imports {right}: write ->"
    assert _is_bound(held, left, right), f"no {left} of a running node holds a {right}"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("storage.files", "server.fetch.fetch.FetchHandler"),
        ("replication.replica_fetcher.ReplicaFetcher", "server.transactions.marker_sender.MarkerSender"),
        ("raft.voters", "server.groups.membership.JoinGroupHandler"),
        ("server.produce.produce.ProduceHandler", "server.groups.host.GroupCoordinatorService"),
        ("server.fetch.fetch.FetchHandler", "server.replicas.fetchers.ReplicaFetchers"),
        ("replication.partition.Partition", "server.dispatch.Dispatcher"),
        ("server.produce.transactional_appends.TransactionVerifier", "server.groups.host.GroupCoordinatorService"),
    ],
)
def test_a_binding_that_is_not_there_is_found_out(left: str, right: str, held: Bindings) -> None:
    assert not _is_bound(held, left, right)


def test_the_table_of_packages_is_that_of_the_layers_in_force() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == ["tailrace"])
    assert in_order(subjects("Layers"), layers)


def test_every_link_leads_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [(page, target) for page in pages for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text())]
    assert len(links) > 20
    assert [f"{page.name} links to {target}" for page, target in links if not (page.parent / target).exists()] == []


def test_every_module_that_the_page_points_to_exists() -> None:
    where = section("Where things are")
    names = re.findall(r"`([a-z_.]+)`", where)
    assert len(names) > 50
    for name in names:
        resolve(name)
