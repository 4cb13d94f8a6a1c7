"""The wheel and the sdist: what `pip install .` brings, and that the public test kit needs nothing else."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src")
_BUILD = """
import sys
sys.modules["Cython"] = None  # the kernel is not what is looked at here, and a compiler takes long
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""


def _build(kind: str, source: Path, target: Path) -> Path:
    command = [sys.executable, "-c", _BUILD, f"build_{kind}", str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkout = tmp_path_factory.mktemp("checkout")
    for name in _SOURCES:
        if (ROOT / name).is_dir():
            without = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "_kernels.c")
            shutil.copytree(ROOT / name, checkout / name, ignore=without)
        else:
            shutil.copy(ROOT / name, checkout)
    return _build("sdist", checkout, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist alone, so that this has all that it takes."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    return _build("wheel", unpacked / sdist.name.removesuffix(".tar.gz"), tmp_path_factory.mktemp("wheel"))


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_has_the_packages_and_nothing_else(wheel: Path) -> None:
    shipped = {name for name in _names(wheel) if ".dist-info/" not in name}
    modules = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    parts = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.p[yx][xi]")}
    assert parts <= shipped, "the whole kernel can be built from it"
    kernel = {*parts, "tailrace/protocol/records/_kernels.c"}
    assert shipped - kernel == modules | {"tailrace/py.typed"}
    assert {name.partition("/")[0] for name in shipped} == {"tailrace", "pyspark_tailrace"}


def test_the_wheel_has_its_licence(wheel: Path) -> None:
    (licence,) = (name for name in _names(wheel) if name.endswith(".dist-info/licenses/LICENSE"))
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()


def test_an_installation_needs_nothing_that_only_tests_need(wheel: Path) -> None:
    (metadata,) = (name for name in _names(wheel) if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        head = Parser().parsestr(archive.read(metadata).decode())
    needed = [line for line in head.get_all("Requires-Dist", []) if "extra ==" not in line]
    of_tests = [line for line in head.get_all("Requires-Dist", []) if "extra == 'test'" in line.replace('"', "'")]

    def names(requirements: list[str]) -> set[str]:
        return {match[0] for line in requirements if (match := re.match(r"[\w-]+", line))}

    assert {"typer", "crc32c"} < names(needed)
    assert {"pytest", "hypothesis", "kio"} < names(of_tests)
    assert names(needed).isdisjoint(names(of_tests))
    assert "Typing :: Typed" in head.get_all("Classifier", [])


def _imported(wheel: Path, directory: Path, statement: str, *, blocked: tuple[str, ...]) -> set[str]:
    """Modules that are loaded after `statement` in a process that has the wheel and cannot import `blocked`."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    script = f"import sys\nsys.modules.update(dict.fromkeys({blocked}))\n{statement}\nprint(*sys.modules)"
    command = [sys.executable, "-c", script]
    env = {**os.environ, "PYTHONPATH": str(directory)}
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


_OF_TESTS = ("hypothesis", "kio", "kafka", "confluent_kafka", "aiokafka", "simulation", "testkit", "xdist")


def test_the_test_kit_needs_nothing_but_the_product(wheel: Path, tmp_path: Path) -> None:
    statement = "import tailrace.testing.clock, tailrace.testing.disk\nfrom tailrace.testing import Cluster"
    assert "tailrace.testing.cluster" in _imported(wheel, tmp_path, statement, blocked=(*_OF_TESTS, "pytest"))


def test_the_plugin_of_pytest_loads_nothing_of_the_product_but_its_late_names(wheel: Path, tmp_path: Path) -> None:
    loaded = _imported(wheel, tmp_path, "import tailrace.testing.pytest_plugin", blocked=_OF_TESTS)
    assert {name for name in loaded if name.startswith("tailrace")} == {
        "tailrace",
        "tailrace.model",
        "tailrace.model.late_names",
        "tailrace.testing",
        "tailrace.testing.pytest_plugin",
        "tailrace.testing.running_test",
    }
