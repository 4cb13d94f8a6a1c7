"""The grain of the source: a class has a name of its own, and imports make no circle. check_house.py has the sizes."""

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

import tailrace

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tailrace"
MODULES = sorted(SOURCE.rglob("*.py"))
TESTS = sorted(path for folder in ("tests", "testkit", "simulation") for path in (ROOT / folder).rglob("*.py"))


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(list)
    for module in MODULES:
        for node in ast.parse(module.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(module.relative_to(SOURCE)))
    assert len(places) > 1_000
    shared = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert not shared, f"each name is to stand for one class: {shared}"


def test_no_two_classes_of_the_tests_share_a_name() -> None:
    """A double stands once, in testkit; what only looks alike has a name that says what it is."""
    places = defaultdict(list)
    for module in TESTS:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("Test"):  # those hold tests
                places[node.name].append(str(module.relative_to(ROOT)))
    assert len(places) > 200
    shared = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert not shared, f"put the double into testkit, or name each after its subject: {shared}"


PACKAGES = pytest.mark.parametrize(
    ("package", "least_imports"), [("tailrace", 1_000), ("simulation", 200), ("testkit", 20), ("benchmarks", 100)]
)


@PACKAGES
def test_no_modules_import_each_other_in_a_circle(package: str, least_imports: int) -> None:
    """Counted with imports for type checkers alone, since a reader follows those too."""
    imports = _imports(package)
    assert sum(map(len, imports.values())) > least_imports
    with pytest.raises(CycleError):
        TopologicalSorter({"a": ["b"], "b": ["a"]}).prepare()
    TopologicalSorter(imports).prepare()


@PACKAGES
def test_no_parts_of_a_package_import_each_other_in_a_circle(package: str, least_imports: int) -> None:
    """The parts of a package are its modules and its folders, each folder as a whole."""
    parts = _imports_of_parts({"a.b.c": ["a.d"], "a.d": ["a.b.e"], "a.b.e": ["a.b.f"]})
    assert parts == {"a": {"b": {"d"}, "d": {"b"}}, "a.b": {"e": {"f"}}}
    parts = _imports_of_parts(_imports(package))
    assert sum(len(imported) for imports in parts.values() for imported in imports.values()) >= least_imports // 4
    for place, imports in parts.items():
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as found:
            pytest.fail(f"in {place}: {' -> '.join(reversed(found.args[1]))}")


def _imports(package: str) -> dict[str, list[str]]:
    graph = grimp.build_graph(package, cache_dir=None)
    return {module: sorted(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def _imports_of_parts(imports: Mapping[str, Iterable[str]]) -> dict[str, dict[str, set[str]]]:
    """Package -> part of it -> the other parts that it imports from."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for importer, imported in (
        (module, other) for module, imported_modules in imports.items() for other in imported_modules
    ):
        pairs = list(zip(importer.split("."), imported.split("."), strict=False))
        shared = next((depth for depth, (part, other) in enumerate(pairs) if part != other), None)
        if shared is not None:  # else a module is the package of the other
            part, other = pairs[shared]
            found[".".join(importer.split(".")[:shared])][part].add(other)
    return found


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == tailrace.__version__
