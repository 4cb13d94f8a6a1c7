"""Small faults put into the product's own source, to see whether a law notices.

A mutant is a file of TOML. It names a file of `src/tailrace`, a text in it and the text that takes its place, the law
that must break, and the seed of a run that breaks the law. The old text must be there exactly once, so that no
refactoring disarms a mutant unnoticed. The mutated modules are loaded beside the real modules, for as long as the runs
take.
"""

import logging
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "tailrace"
"""The directory of the package."""
RELOADED = ("tailrace.raft", "tailrace.metadata", "testkit", "simulation")
RELOADED_FOR_REPLICAS = ("tailrace.fetch_session", "tailrace.replication", "tailrace.server", "testkit", "simulation")
RELOADED_FOR_NODES = (
    "tailrace.raft",
    "tailrace.metadata",
    "tailrace.storage",
    "tailrace.replication",
    "tailrace.server",
    "tailrace.testing.disk",
    "testkit",
    "simulation",
)
RELOADED_FOR_LOGS = (
    "tailrace.storage",
    "testkit",
    "tailrace.testing.disk",
    "simulation",
)
RELOADED_FOR_HEADERS = (
    "tailrace.protocol.records",
    "tailrace.storage",
    "tailrace.replication",
    "tailrace.server",
    "testkit",
    "simulation",
)
RELOADED_FOR_TRANSACTIONS = ("tailrace.coordinators", *RELOADED_FOR_NODES)
RELOADED_FOR_COMMITS = ("tailrace.coordinators", "tailrace.model.committed_progress", "simulation")
RELOADED_FOR_SINKS = ("tailrace.coordinators", "tailrace.server.transactions", "simulation")
RELOADED_FOR_MEMBERS = ("tailrace.coordinators", "tailrace.client.group.consumer_member", "simulation")
WORLDS = {
    "quorum": ("raft.cluster.run_seed", RELOADED),
    "metadata": ("quorum.metadata_replicas.run_seed", RELOADED),
    "replica": ("replicas.cluster.run_seed", RELOADED_FOR_REPLICAS),
    "late copies": ("replicas.cluster.run_late_copies", RELOADED_FOR_REPLICAS),
    "silence": ("replicas.cluster.run_silence", RELOADED_FOR_REPLICAS),
    "forgetful": ("replicas.forgetful_cluster.run_seed", RELOADED_FOR_REPLICAS),
    "log": ("logs.damaged_log.run_seed", RELOADED_FOR_LOGS),
    "headers": ("logs.wrong_headers.run_seed", RELOADED_FOR_HEADERS),
    "sessions": ("sessions.walks.run_seed", RELOADED_FOR_REPLICAS),
    "session scope": ("sessions.scopes.run_scope", RELOADED_FOR_REPLICAS),
    "commits": ("commits.scopes.run_scope", RELOADED_FOR_COMMITS),
    "sinks": ("sinks.scopes.run_scope", RELOADED_FOR_SINKS),
    "members": ("members.cluster.run_seed", RELOADED_FOR_MEMBERS),
    "member scope": ("members.scopes.run_scope", RELOADED_FOR_MEMBERS),
    "bad disk": ("replicas.bad_disk_cluster.run_seed", RELOADED_FOR_REPLICAS),
    "transactions": ("transactions.cluster.run_seed", RELOADED_FOR_TRANSACTIONS),
    "nodes": ("quorum.cluster.run_seed", RELOADED_FOR_NODES),
}
"""For each kind of mutant the function that runs a seed, and the modules that are loaded anew for the run."""
BY_A_UNIT_TEST = "unit tests"
"""The kind of a mutant of a rule that no world has: its law is a unit test (`mutant_tests.noticed_by`)."""


class Patch(NamedTuple):
    """A text in a file, and the text that takes its place. The name of the file is relative to `src/tailrace`."""

    file: str
    old: str
    new: str

    def occurrences(self) -> int:
        """The number of places of the old text. A mutant needs exactly one place."""
        return (SOURCE / self.file).read_text().count(self.old)


class Mutant(NamedTuple):
    """A fault, and the law that the fault must break."""

    name: str
    what: str
    """In words."""
    kind: str
    """The world that runs with the fault, of `WORLDS`."""
    law: str
    seed: int
    unit_tests: tuple[str, ...] | None
    """Up to three unit tests of the patched packages that notice the mutant too. The list is not checked. None: no unit
    tests were tried."""
    patches: tuple[Patch, ...]

    @classmethod
    def read(cls, path: Path) -> "Mutant":
        """Raises KeyError or TypeError if something is missing."""
        content = tomllib.loads(path.read_text())
        kind = content.get("kind", "quorum")
        assert kind in WORLDS or kind == BY_A_UNIT_TEST, f"{path.name}: {kind}"
        patches = tuple(Patch(**patch) for patch in content["patch"])
        noticed_by = tuple(content["unit_tests"]) if "unit_tests" in content else None
        return cls(path.stem, content["what"], kind, content["law"], content["seed"], noticed_by, patches)

    def run(self, seed: int) -> str | None:
        """The law that is broken in the run of this seed; None if no law is broken. Raises every exception that is not
        a Breach."""
        with self.loaded() as run:
            return run(seed)

    def search(self, *, max_states: int, instant_disk: bool = False, **budget: int) -> str | None:
        """The breach that the exhaustive search of this small scope finds, or None."""
        with _mutated(self.patches, RELOADED):
            scopes = import_module("simulation.raft.scope.scope")
            small_scope = import_module("simulation.harness.small_scope")
            scope = scopes.RaftScope(instant_disk=instant_disk)
            try:
                small_scope.explore(scope, scope.start(scopes.QuorumBudget(**budget)), max_states=max_states)
            except small_scope.ScopeBreach as breach:
                return str(breach.detail)
        return None

    @contextmanager
    def loaded(self) -> Iterator[Callable[[int], str | None]]:
        """A function that runs a seed with the mutant and returns the law that was broken, if any."""
        path, reloaded = WORLDS[self.kind]
        name, function = path.rsplit(".", 1)
        with _mutated(self.patches, reloaded):
            module = import_module(f"simulation.{name}")
            breach: type[AssertionError] = import_module("simulation.harness.breach").Breach

            def run(seed: int) -> str | None:
                logging.disable(logging.CRITICAL)  # disks fail on purpose here, and say so
                try:
                    getattr(module, function)(seed)
                except breach as error:
                    return str(getattr(error, "law", ""))
                finally:
                    logging.disable(logging.NOTSET)
                return None

            yield run


def all_mutants(directory: Path) -> list[Mutant]:
    """The mutants of a directory, by name."""
    return [Mutant.read(path) for path in sorted(directory.glob("*.toml"))]


class Hunt(NamedTuple):
    """The results of some seeds with a mutant."""

    name: str
    seed: int | None
    """The first seed in which its law was broken."""
    seeds: int
    broken: dict[str, int]
    """The number of breaches of each law, and of other exceptions."""


def hunt(mutant: Mutant, seeds: range, kills: int = 1) -> Hunt:
    """Look for seeds that kill the mutant, until this number is found."""
    broken: Counter[str] = Counter()
    first, tried = None, 0
    with mutant.loaded() as run:
        for seed in seeds:
            tried += 1
            try:
                law = run(seed)
            except Exception as error:  # noqa: BLE001 - whatever else a mutant does is worth telling
                law = f"{type(error).__name__}, which is no law"
            if law is None:
                continue
            broken[law] += 1
            if law == mutant.law and first is None:
                first = seed
            if broken[mutant.law] >= kills:
                break
    return Hunt(mutant.name, first, tried, dict(broken))


def store_seed(directory: Path, name: str, seed: int) -> None:
    """Write this seed into the mutant's file."""
    path = directory / f"{name}.toml"
    path.write_text(re.sub(r"^seed = \d+$", f"seed = {seed}", path.read_text(), count=1, flags=re.MULTILINE))


def store_unit_tests(directory: Path, name: str, unit_tests: Sequence[str]) -> None:
    """Write into the mutant's file which unit tests notice the mutant."""
    path = directory / f"{name}.toml"
    named = "".join(f'  "{test}",\n' for test in unit_tests)
    entry = f"unit_tests = [\n{named}]\n" if named else "unit_tests = []\n"
    text = re.sub(r'^unit_tests = \[(\n(  ".*",\n)*)?\]\n', "", path.read_text(), count=1, flags=re.MULTILINE)
    path.write_text(re.sub(r"^(seed = \d+\n)", lambda seed: seed[1] + entry, text, count=1, flags=re.MULTILINE))


class _Mutator(MetaPathFinder, Loader):
    """Finds modules whose source is to be replaced."""

    def __init__(self, patches: Sequence[Patch]) -> None:
        self._sources: dict[str, str] = {}
        for patch in patches:
            name = "tailrace." + patch.file.removesuffix(".py").replace("/", ".")
            source = self._sources.get(name) or (SOURCE / patch.file).read_text()
            assert source.count(patch.old) == 1, (
                f"{patch.file} has this text {source.count(patch.old)} times: {patch.old}"
            )
            self._sources[name] = source.replace(patch.old, patch.new)

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname in self._sources else None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code(module.__name__), module.__dict__)  # noqa: S102 - our own source with our own patch

    def _code(self, name: str) -> CodeType:
        return compile(self._sources[name], f"<mutant of {name}>", "exec")


def mutate_this_process(mutant: Mutant) -> None:
    """Load the mutant's text for every module that the mutant patches. There is no way back in this process."""
    mutator = _Mutator(mutant.patches)
    for name in [module for module in sys.modules if module == "tailrace" or module.startswith("tailrace.")]:
        del sys.modules[name]
    sys.meta_path.insert(0, mutator)


@contextmanager
def _mutated(patches: Sequence[Patch], packages: Sequence[str]) -> Iterator[None]:
    """Inside, the patched modules and the modules that import them are loaded anew, with the patches."""
    mutator = _Mutator(patches)
    own = {name: module for name, module in sys.modules.items() if _is_reloaded(name, packages)}
    for name in own:
        del sys.modules[name]
    sys.meta_path.insert(0, mutator)
    try:
        yield
    finally:
        sys.meta_path.remove(mutator)
        for name in [module for module in sys.modules if _is_reloaded(module, packages)]:
            del sys.modules[name]
        sys.modules.update(own)
        for name in packages:  # a package knows its parts as attributes too
            parent, _, part = name.rpartition(".")
            if name in own and parent:
                setattr(sys.modules[parent], part, own[name])


def _is_reloaded(name: str, packages: Sequence[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)
