"""Checks the sizes of files, folders and the whole, and how often prose points at a noun instead of naming the noun.

    python scripts/check_house.py   the numbers and every finding; exit code 1 for a finding

A limit is a question, not a target: at the limit find the second noun of the file, do not shave lines off. The lines of
the whole have an aim and no limit: nothing that users see is given up for it. Circles of imports and class names are
tests (tests/architecture/test_grain.py).
"""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = "src/tailrace"
TRIALS: Final = ("tests", "testkit", "simulation")
"""Folders that try the product."""
MOST_LINES: Final = 450
"""Lines of a file."""
MOST_MODULES: Final = 20
"""Modules of a folder, `__init__` apart."""
SMALL_LINES: Final = 60
"""A module with fewer lines that one module imports could be part of that module."""
MOST_SMALL: Final = 5
"""Such modules in the whole source."""
AIM_OF_SOURCE_LINES: Final = 97_000
AIM_OF_TRIAL_LINES: Final = 134_000
MOST_ONES: Final = 1.5
"""Pronouns `one` in 1,000 words of docstrings and comments of the source."""
MOST_POINTERS: Final = 7.0
"""Pronouns such as `those` and `others` in 1,000 words."""

_VERB: Final = r"that|of|are|is|has|have|may|must|with|without|in|from|below|above|behind"
_ONE: Final = re.compile(
    r"\bones?\b(?=\s*(?:[.,;:)]|(?:that|which|whose|of (?:them|these|those|the)|has|is|was|were|with|without|for|in|at"
    r"|from|to|may|must|cannot|ends|comes|by)\b))",
    re.IGNORECASE,
)
_POINTER: Final = re.compile(
    rf"\b(?:those|others|such|these|it|they|them|each|all)\b(?=\s*(?:[.,;:)]|(?:{_VERB})\b))", re.IGNORECASE
)


class Module(NamedTuple):
    """A file of Python."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """The path below the root of the repository."""
        return str(self.path.relative_to(ROOT))

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())


class Numbers(NamedTuple):
    """The numbers that have a limit or an aim."""

    source_lines: int
    trial_lines: int
    long_files: Mapping[str, int]
    full_folders: Mapping[str, int]
    small_modules: Mapping[str, str]
    """Small modules with a single importer, and the importer."""
    pronouns: float
    pointers: float

    def findings(self) -> Iterator[str]:
        """The limits that are exceeded, and how to go on."""
        for name, lines in self.long_files.items():
            yield f"{name} has {lines} lines, of {MOST_LINES}: split it by noun"
        for name, modules in self.full_folders.items():
            yield f"{name}/ has {modules} modules, of {MOST_MODULES}: give a subject a folder"
        if len(self.small_modules) > MOST_SMALL:
            for name, importer in self.small_modules.items():
                yield f"{name} is small, and only {importer} imports it: make it a part of its importer"
        for what, number, most in (
            ("pronouns `one` in 1,000 words of the source", self.pronouns, MOST_ONES),
            ("pronouns such as `those` and `others` in 1,000 words", self.pointers, MOST_POINTERS),
        ):
            if number > most:
                yield f"{what}: {number:,.6g}, of {most:,}"

    def __str__(self) -> str:
        return (
            f"source {self.source_lines:,} lines (aim {AIM_OF_SOURCE_LINES:,}); "
            f"tests, kit and simulation {self.trial_lines:,} (aim {AIM_OF_TRIAL_LINES:,}); "
            f"{len(self.long_files)} files above {MOST_LINES} lines; "
            f"{len(self.full_folders)} folders above {MOST_MODULES} modules; "
            f"{len(self.small_modules)} small modules with a single importer; "
            f"in 1,000 words of the source {self.pronouns:.2f} pronouns `one`, {self.pointers:.2f} such as `those`"
        )


def modules(folder: str) -> list[Module]:
    """The modules below the folder, by path."""
    paths = (path for path in sorted((ROOT / folder).rglob("*.py")) if "node_modules" not in path.parts)
    return [Module(path, path.read_text()) for path in paths]


def count() -> Numbers:
    """The numbers of the repository."""
    source = modules(SOURCE)
    trials = [module for folder in TRIALS for module in modules(folder)]
    everything = [*source, *trials, *modules("benchmarks")]
    pronouns, pointers = rates(source)
    return Numbers(
        source_lines=sum(module.lines for module in source),
        trial_lines=sum(module.lines for module in trials),
        long_files={module.name: module.lines for module in everything if module.lines > MOST_LINES},
        full_folders=full_folders(everything),
        small_modules=small_modules(source),
        pronouns=pronouns,
        pointers=pointers,
    )


def full_folders(found: Iterable[Module]) -> dict[str, int]:
    """Folders with too many modules, and how many."""
    sizes: dict[str, int] = defaultdict(int)
    for module in found:
        sizes[str(module.path.parent.relative_to(ROOT))] += module.path.name != "__init__.py"
    return {folder: size for folder, size in sorted(sizes.items()) if size > MOST_MODULES}


def small_modules(source: Sequence[Module]) -> dict[str, str]:
    """Small modules that a single module imports, a package's `__init__` apart, and that module."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module in source:
        for imported in _imports(ast.parse(module.text)):
            importers[imported].add(module.name)
    found = {}
    for module in source:
        name = module.name.removeprefix("src/").removesuffix(".py").replace("/", ".")
        is_small = module.lines < SMALL_LINES and module.path.name not in ("__init__.py", "__main__.py")
        if is_small and len(importers[name]) == 1:
            found[module.name] = next(iter(importers[name]))
    return found


def _imports(tree: ast.AST) -> Iterator[str]:
    """The modules that a module may import by these statements; a name from a package may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rates(source: Iterable[Module]) -> tuple[float, float]:
    """Pronouns `one`, and pronouns such as `those`, in 1,000 words of docstrings and comments."""
    texts = [text for module in source for text in _prose(module.text)]
    prose = " \n ".join(texts)
    thousands = max(1, len(prose.split())) / 1000
    return len(_ONE.findall(prose)) / thousands, len(_POINTER.findall(prose)) / thousands


def _prose(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def main() -> int:
    """Print the numbers, and the findings."""
    numbers = count()
    print(f"House: {numbers}.")
    findings = list(numbers.findings())
    for finding in findings:
        print(finding)
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
