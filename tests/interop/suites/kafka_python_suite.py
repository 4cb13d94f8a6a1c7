"""kafka-python's own integration tests, from its source distribution, against a node of ours.

pip brings the sources by their name, in the version that is installed. They come without two files: `test/__init__.py`
(without it Python's own package `test` is found) and `test/service.py`, which starts a broker; ours starts none.
"""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from benchmarks.downloads.fetching import fetched, put_in_place

VERSION = version("kafka-python")
KAFKA_VERSION = "4.1.0"
"""The version that the tests take a node for: with 4.0 and later they look for no ZooKeeper."""

HOME = Path(sys.prefix) / f"kafka-python-suite-{VERSION}"
_TESTS = "test/integration"
_RUN_TIMEOUT_S = 240

_SERVICE = '''"""In the place of the module that starts brokers, which the distribution leaves out."""


class ExternalService:
    """A broker that runs already."""

    def __init__(self, host, port):
        self.host, self.port = host, port


class SpawnedService:
    """A broker of the test's own."""

    def __init__(self, args=None, env=None):
        raise RuntimeError("there is no Apache Kafka to start")
'''
_SETTINGS = "[pytest]\ntimeout = 100\naddopts =\n"
"""Or else pytest would find the settings of the repository around the cache."""


class SuiteRun(NamedTuple):
    """The outcomes of the tests, by their names: `test_file.py::test_name[parameter]`."""

    collected: int
    passed: frozenset[str]
    skipped: dict[str, str]
    """With the reason."""
    failed: dict[str, str]
    """With the message."""


def absent() -> str | None:
    """The reason why the tests cannot be run here; None if they can."""
    if not HOME.exists() and not _fetch():
        return f"pip cannot fetch the sources of kafka-python=={VERSION} here"
    return None


@cache
def _fetch() -> bool:
    with tempfile.TemporaryDirectory(dir=HOME.parent, prefix="kafka-python-") as work:
        fetch = [sys.executable, "-m", "pip", "download", "--no-binary", ":all:", "--no-deps", "--no-build-isolation"]
        fetch += ["--disable-pip-version-check", "-d", work, f"kafka-python=={VERSION}"]
        if not fetched(fetch, directory=Path(work)):
            return False
        (archive,) = Path(work).glob("*.tar.gz")
        with tarfile.open(archive) as sources:
            sources.extractall(work, filter="data")
        (root,) = Path(work).glob("kafka_python-*/")
        suite = Path(work, "suite")
        suite.mkdir()
        # Only the tests: what they test is the package that is installed.
        os.replace(root / "test", suite / "test")
        (suite / "test" / "__init__.py").touch()
        (suite / "test" / "service.py").write_text(_SERVICE)
        (suite / "pytest.ini").write_text(_SETTINGS)
        return put_in_place(suite, HOME)


def run_suite(bootstrap: str, directory: Path, *, only: Iterable[str] = (), without: tuple[str, ...] = ()) -> SuiteRun:
    """Run the tests against this node: the tests in `only`, or all tests but the tests in `without`."""
    report = directory / "report.xml"
    report.unlink(missing_ok=True)
    tests = [f"{_TESTS}/{name}" for name in only] or [_TESTS]
    command = [sys.executable, "-m", "pytest", *tests, "-p", "no:randomly", "-p", "no:cacheprovider", "--tb=short"]
    command += [f"--junitxml={report}", "-W", "ignore::DeprecationWarning"]
    command += [word for name in without for word in ("--deselect", f"{_TESTS}/{name}")]
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "KAFKA_"))}
    node = {"KAFKA_URI": f"kafka://{bootstrap}", "KAFKA_VERSION": KAFKA_VERSION, "KAFKA_ROOT": str(directory)}
    done = subprocess.run(
        command,
        cwd=HOME,
        env={**known, **node, "PYTHONPATH": str(HOME)},
        capture_output=True,
        text=True,
        timeout=_RUN_TIMEOUT_S,
        check=False,
    )
    assert report.exists(), f"{done.stdout}\n{done.stderr}"
    found = re.search(r"^collected (\d+) items?", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return _read(report, int(found[1]))


def _read(report: Path, collected: int) -> SuiteRun:
    passed, skipped, failed = set(), {}, {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        module, *classes = (case.get("classname") or "").removeprefix("test.integration.").split(".")
        name = "::".join((f"{module}.py", *classes, case.get("name") or ""))
        if (verdict := case.find("skipped")) is not None:
            skipped[name] = verdict.get("message") or ""
        elif (verdict := case.find("failure")) is not None or (verdict := case.find("error")) is not None:
            failed[name] = f"{verdict.get('message')}\n{verdict.text}"
        else:
            passed.add(name)
    return SuiteRun(collected, frozenset(passed), skipped, failed)
