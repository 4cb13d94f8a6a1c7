"""docs/architecture.md is true: its names exist, its arrows are imports, its table is the layers in force."""

import importlib
import re
import tomllib
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
STEPS = [
    line.split(maxsplit=3)[:3]
    for block in re.findall(r"^```journey\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("tailrace", cache_dir=None)


def _resolve(name: str) -> tuple[str, object]:
    """The module of a dotted name and the thing itself, which may be the module."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(["tailrace", *parts[:length]])
        try:
            found: object = importlib.import_module(module)
        except ModuleNotFoundError as fault:
            if fault.name is None or not module.startswith(fault.name):
                raise
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return module, found
    raise AssertionError(f"docs/architecture.md names {name}, which does not exist")


def _home(name: str) -> str:
    """The module that holds the thing: where a class is defined, not where it is passed on."""
    module, found = _resolve(name)
    return getattr(found, "__module__", module) if isinstance(found, type) else module


def _modules(name: str) -> set[str]:
    module, _ = _resolve(name)
    return {module, _home(name)}


def _imports(importer: str, imported: set[str]) -> bool:
    return any(_graph().direct_import_exists(importer=importer, imported=module) for module in imported)


def test_there_are_journeys() -> None:
    assert len(STEPS) > 30
    assert {arrow for _, arrow, _ in STEPS} == {"->", "~>"}


@pytest.mark.parametrize("step", STEPS, ids=" ".join)
def test_every_step_is_true(step: list[str]) -> None:
    left, arrow, right = step
    sources, targets = _modules(left), _modules(right)
    if arrow == "->":
        assert any(_imports(source, targets) for source in sources), f"{left} does not import {right}"
    else:
        assert not any(_imports(source, targets) for source in sources), f"{left} imports {right}: write ->"
        node = [module for module in _graph().modules if module.startswith("tailrace.node.")]
        reached = {module for name in node for module in _graph().find_upstream_modules(name)} | set(node)
        assert sources & reached, f"the node does not build {left}"
        assert targets & reached, f"the node does not build {right}"


def test_the_table_names_every_layer() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    table = PAGE.partition("## Layers")[2].partition("## The journeys")[0]
    for layer in layers:
        for package in layer.split("|"):
            assert f"`{package.strip()}`" in table, package


def test_every_link_leads_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_module_that_the_page_points_to_exists() -> None:
    where = PAGE.partition("## Where things are")[2]
    for name in re.findall(r"`([a-z_.]+)`", where):
        _resolve(name)
