"""Go clients' own tests against a node. Go brings a module by its name; its tests are built once, in a copy."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.downloads.fetching import fetched, put_in_place
from benchmarks.downloads.franz_go import VERSION as FRANZ_GO_VERSION
from benchmarks.downloads.go_programs import CACHE, ENVIRONMENT

_BUILD_TIMEOUT_S = 900
"""A minute on two idle cores, all of Go's own packages included."""
_BINARY = "module.test"
_ADDRESS = "NODE_ADDRESS"


class GoModule(NamedTuple):
    """A client, and the client's test that is run."""

    path: str
    """In lower case: Go writes capitals in another way on the disk."""
    version: str
    oldest_go: tuple[int, int]
    """The first Go that builds the client."""
    package: str
    test: str
    fixed_address: str = ""
    """The address at which the test expects a broker without an environment variable. The copy has the variable."""

    @property
    def home(self) -> Path:
        return Path(sys.prefix) / f"{self.path.rpartition('/')[2]}-{self.version}"


FRANZ_GO = GoModule("github.com/twmb/franz-go", FRANZ_GO_VERSION, (1, 26), "./pkg/kgo", "TestTxnEtl")
KAFKA_GO = GoModule(
    "github.com/segmentio/kafka-go", "v0.4.48", (1, 18), ".", "TestReaderReadCompactedMessage", "localhost:9092"
)
GO_MODULES = (FRANZ_GO, KAFKA_GO)


def franz_go_absent() -> str | None:
    """The reason why its test cannot be run here, with the command that would bring what is missing; None if it can."""
    return _absent(FRANZ_GO)


def kafka_go_absent() -> str | None:
    """As `franz_go_absent`."""
    return _absent(KAFKA_GO)


def _absent(module: GoModule) -> str | None:
    if module.home.exists():
        return None
    if shutil.which("go") is None:
        return "go is not installed: apt-get install golang"
    if _go_version() < module.oldest_go:
        return f"{module.path} takes Go {module.oldest_go[0]}.{module.oldest_go[1]} or newer"
    if not _build(module):
        return f"go cannot fetch and build {module.path}@{module.version} here"
    return None


@cache
def _go_version() -> tuple[int, int]:
    environment = {**os.environ, **ENVIRONMENT}
    output = subprocess.run(
        ["go", "version"], env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    found = re.search(r"\bgo(\d+)\.(\d+)", output)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@cache
def _build(module: GoModule) -> bool:
    go = ["env", *(f"{name}={value}" for name, value in ENVIRONMENT.items()), "go"]
    with tempfile.TemporaryDirectory(dir=sys.prefix, prefix="go-module-") as work:
        source, made = Path(work, "source"), Path(work, "made")
        Path(work, "go.mod").write_text("module fetching\n")
        if not fetched([*go, "mod", "download", f"{module.path}@{module.version}"], directory=Path(work)):
            return False
        shutil.copytree(CACHE / "path" / "pkg" / "mod" / f"{module.path}@{module.version}", source)
        if module.fixed_address:
            _take_address_from_environment(source / module.package, module.fixed_address)
        made.mkdir()
        build = [*go, "test", "-vet=off", "-c", "-o", f"{made}/{_BINARY}", module.package]
        return fetched(build, directory=source, timeout_s=_BUILD_TIMEOUT_S) and put_in_place(made, module.home)


def _take_address_from_environment(package: Path, fixed_address: str) -> None:
    """A constant stays as it is: tests that use a constant are not run here. So do examples, a package of their own."""
    name = ""
    for path in package.glob("*_test.go"):
        text = path.read_text()
        declared = re.search(r"^package (\w+)$", text, re.MULTILINE)
        if declared is None or declared[1].endswith("_test"):
            continue
        name = declared[1]
        path.write_text(re.sub(rf'(?<!= )"{re.escape(fixed_address)}"', "nodeAddress", text))
    variable = f'import "os"\n\nvar nodeAddress = os.Getenv("{_ADDRESS}")\n'
    Path(package, "node_address_test.go").write_text(f"package {name}\n\n{variable}")


def run_test(module: GoModule, address: str, environment: Mapping[str, str], *, timeout_s: int) -> None:
    """Run the test against the node. The test must pass."""
    done = subprocess.run(
        [str(module.home / _BINARY), "-test.v", f"-test.run=^{module.test}$", f"-test.timeout={timeout_s}s"],
        env={**os.environ, _ADDRESS: address, **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=timeout_s + 20,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-20_000:]}"
    assert f"--- PASS: {module.test} " in done.stdout, done.stdout
