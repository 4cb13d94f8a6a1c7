"""Tests of other projects, from their source distributions, against a node.

pip brings the sources by their name, in a pinned version, and beside them the packages that the environment of
Tailrace's own tests does not have. The node is a fixture of Tailrace's kit: a plugin of a few lines (`swaps`) puts the
node in the place of the broker that the project starts by other means.
"""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from xml.etree import ElementTree

from benchmarks.downloads.fetching import fetched, put_in_place

TESTS = Path(__file__).parents[2]
PACKAGES = "packages"
ADDRESS = "NODE_ADDRESS"
_PLUGINS = ("pytest_timeout", "tailrace.testing.pytest_plugin")
_SETTINGS = "[pytest]\ntimeout = 100\naddopts =\n"
"""Or else pytest would find the settings of the repository around the cache."""
_FETCH_TIMEOUT_S = 900
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


class SuiteRun(NamedTuple):
    """The outcomes of the tests, by their names: `test_file.py::test_name[parameter]`."""

    collected: int
    passed: frozenset[str]
    skipped: dict[str, str]
    """With the reason."""
    failed: dict[str, str]
    """With the message."""
    seconds: float
    """The whole run, from the start of pytest to its end."""


class SourceSuite(NamedTuple):
    """The tests of a project that want a broker, and what a run of the tests needs."""

    project: str
    version: str
    kept: str
    """The folder of the distribution that is kept."""
    folder: str
    """The folder of the tests. The names of tests begin below the folder."""
    swap: str
    """The module of `swaps` with the swapped fixture."""
    files: tuple[str, ...] = ("",)
    """The files with tests that want a broker; the whole folder by default."""
    added: tuple[tuple[str, str], ...] = ()
    """Files that the distribution leaves out, with their text."""
    fixed_address: str = ""
    """The address at which the tests expect a broker, come what may: the copy has the address of the environment."""
    settings: str = ""
    """Further lines of pytest.ini."""
    packages: tuple[str, ...] = ()
    """Packages that Tailrace's own tests do not have."""
    plugins: tuple[str, ...] = ()
    timeout_s: int = 240

    @property
    def home(self) -> Path:
        """The directory of the copy, which is complete or absent."""
        digest = sha256(repr(self).encode()).hexdigest()[:8]
        return Path(sys.prefix) / f"{self.project}-suite-{self.version}-{digest}"

    def absent(self) -> str | None:
        """The reason why the tests cannot be run here; None if they can."""
        if not self.home.exists() and not _fetch(self):
            return f"pip cannot fetch the sources of {self.project}=={self.version} here"
        return None


class ForeignSuite(NamedTuple):
    """The tests of a project, and what comes of the tests against a node."""

    tests: SourceSuite
    client: str
    """The client of Kafka that the project is built on."""
    swapped: str
    """The part of the project's set-up that the node takes the place of."""
    collected: int
    skipped: Mapping[str, str]
    """Tests that are skipped by themselves, with their reason."""
    left_out: Mapping[str, str]
    """Tests that would fail, with the reason."""
    settings: Mapping[str, str] = MappingProxyType({})
    """Settings of the broker."""


@cache
def _fetch(suite: SourceSuite) -> bool:
    with tempfile.TemporaryDirectory(dir=suite.home.parent, prefix=f"{suite.project}-") as name:
        work = Path(name)
        made = work / "suite"
        (made / PACKAGES).mkdir(parents=True)
        install = [*_PIP, "install", "--no-deps", "--target", str(made / PACKAGES), *suite.packages]
        if suite.packages and not fetched(install, directory=work, timeout_s=_FETCH_TIMEOUT_S):
            return False
        root = fetched_sources(suite.project, suite.version, work, packages=made / PACKAGES)
        if root is None:
            return False
        os.replace(root / suite.kept, made / suite.kept)
        for path, text in suite.added:
            (made / path).write_text(text)
        if suite.fixed_address:
            _take_address_from_environment(made / suite.folder, suite.fixed_address)
        (made / "pytest.ini").write_text(_SETTINGS + suite.settings)
        return put_in_place(made, suite.home)


def fetched_sources(project: str, version: str, work: Path, *, packages: Path | None = None) -> Path | None:
    """The unpacked source distribution in this directory; None if pip cannot fetch the distribution.

    Without `packages`, which has what the distribution is built with, pip fetches that too.
    """
    fetch = [*_PIP, "download", "--no-binary", project, "--no-deps", "-d", str(work), f"{project}=={version}"]
    if packages is not None:
        fetch = ["env", f"PYTHONPATH={packages}", *fetch, "--no-build-isolation"]
    if not fetched(fetch, directory=work, timeout_s=_FETCH_TIMEOUT_S):
        return None
    (archive,) = work.glob("*.tar.gz")
    unpacked = work / "sources"
    with tarfile.open(archive) as sources:
        sources.extractall(unpacked, filter="data")
    (root,) = unpacked.iterdir()
    return root


def _take_address_from_environment(folder: Path, fixed_address: str) -> None:
    for path in folder.rglob("test_*.py"):
        text = path.read_text()
        path.write_text(
            re.sub(rf"""(['"]){re.escape(fixed_address)}\1""", f"__import__('os').environ['{ADDRESS}']", text)
        )


def run_suite(
    suite: SourceSuite,
    directory: Path,
    *,
    only: Iterable[str] = (),
    without: Iterable[str] = (),
    elsewhere: str | None = None,
) -> SuiteRun:
    """Run the tests in `only`, or all tests but the tests in `without`, against a node of the kit.

    `elsewhere` is the address of another broker, to compare with.
    """
    report = directory / "report.xml"
    report.unlink(missing_ok=True)
    tests = [f"{suite.folder}/{name}" for name in only] or [f"{suite.folder}/{name}" for name in suite.files]
    swaps = [f"interop.suites.swaps.{name}" for name in (suite.swap, *(["elsewhere"] if elsewhere else []))]
    command = [sys.executable, "-m", "pytest", *tests, "-p", "no:cacheprovider", "--tb=short"]
    command += [word for plugin in (*_PLUGINS, *suite.plugins, *swaps) for word in ("-p", plugin)]
    command += [f"--junitxml={report}", "-W", "ignore::DeprecationWarning"]
    command += [word for name in without for word in ("--deselect", f"{suite.folder}/{name}")]
    paths = [suite.home / PACKAGES, suite.home, TESTS, TESTS.parent]
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "KAFKA_"))}
    given = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=suite.home,
        env={**known, **given, ADDRESS: elsewhere or ""},
        capture_output=True,
        text=True,
        timeout=suite.timeout_s,
        check=False,
    )
    seconds = time.monotonic() - began
    assert report.exists(), f"{done.stdout}\n{done.stderr}"
    found = re.search(r"^collected (\d+) items?", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return _read(suite, report, int(found[1]), seconds)


def _read(suite: SourceSuite, report: Path, collected: int, seconds: float) -> SuiteRun:
    passed, skipped, failed = set(), {}, {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        file, classes = _file_and_classes(suite, (case.get("classname") or "").split("."))
        name = "::".join((file, *classes, case.get("name") or ""))
        if (verdict := case.find("skipped")) is not None:
            skipped[name] = verdict.get("message") or ""
        elif (verdict := case.find("failure")) is not None or (verdict := case.find("error")) is not None:
            failed[name] = f"{verdict.get('message')}\n{verdict.text}"
        else:
            passed.add(name)
    passed -= failed.keys()
    return SuiteRun(collected, frozenset(passed), skipped, failed, seconds)


def _file_and_classes(suite: SourceSuite, names: list[str]) -> tuple[str, list[str]]:
    for end in range(len(names), 0, -1):
        path = f"{'/'.join(names[:end])}.py"
        if (suite.home / path).is_file():
            return path.removeprefix(f"{suite.folder}/"), names[end:]
    return "", names


def run_until_passed(
    suite: SourceSuite, directory: Path, say: Callable[[str], None], *, without: Iterable[str], times: int
) -> SuiteRun:
    """Run the tests, and what has failed up to so many times more, each time on a node that knows nothing of the runs
    before. Raises AssertionError for tests that still fail."""
    first = run_suite(suite, directory, without=without)
    passed, failed, told = first.passed, first.failed, [_told(first.failed)]
    for _ in range(times):
        if failed:
            say(f"\n{suite.project}, run once more: {_told(failed)}\n")
            again = run_suite(suite, directory, only=failed)
            passed, failed = passed | again.passed, again.failed
            told.append(_told(failed))
    assert not failed, "\n\nand before:\n\n".join(reversed(told))
    return first._replace(passed=passed, failed={})


def _told(failed: Mapping[str, str]) -> str:
    return "\n\n".join(f"{name}: {message}" for name, message in failed.items())
