"""Programs in Go of one source file and one client, which Go builds once from the client's published module."""

import shutil
import sys
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.downloads.fetching import fetched, put_in_place

CACHE: Final = Path(sys.prefix) / "go"
"""The directory of Go's caches: fetched modules and compiled packages."""
ENVIRONMENT: Final = {
    "GOPATH": f"{CACHE}/path",
    "GOCACHE": f"{CACHE}/build",
    "GOFLAGS": "-mod=mod -modcacherw -buildvcs=false",  # read-only modules could neither be changed nor removed
    "GOTOOLCHAIN": "local",  # no other Go is fetched
    "CGO_ENABLED": "0",
}
_BUILD_TIMEOUT_S: Final = 900
"""The time limit of a build, which takes a minute on two idle cores, with Go's own packages."""


class GoProgram(NamedTuple):
    """A producer of a Go client."""

    client: str
    module: str
    """The client's module, as `path@version`."""
    source: Path

    @property
    def path(self) -> Path:
        """The built program."""
        return self.home / f"{self.client}-producer"

    @property
    def home(self) -> Path:
        """The directory of the built program, which is complete or absent."""
        version = self.module.rpartition("@")[2]
        return Path(sys.prefix) / f"{self.client}-producer-{version}-{sha256(self.source.read_bytes()).hexdigest()[:8]}"

    def absent(self) -> str | None:
        """The reason why the program cannot run here, with the way to install the missing part; None if it can run."""
        if self.home.exists():
            return None
        if shutil.which("go") is None:
            return f"{self.client} needs Go: apt-get install golang"
        return None if _build(self, self.home) else f"go cannot fetch and build {self.module} here"


@cache
def _build(program: GoProgram, home: Path) -> bool:
    go = ["env", *(f"{name}={value}" for name, value in ENVIRONMENT.items()), "go"]
    with tempfile.TemporaryDirectory(dir=sys.prefix, prefix="go-program-") as work:
        source, made = Path(work, "source"), Path(work, "made")
        source.mkdir()
        made.mkdir()
        shutil.copy(program.source, source / "main.go")
        Path(source, "go.mod").write_text("module producer\n\ngo 1.22\n")
        if not fetched([*go, "get", program.module], directory=source, timeout_s=_BUILD_TIMEOUT_S):
            return False
        build = [*go, "build", "-o", f"{made}/{program.path.name}", "."]
        return fetched(build, directory=source, timeout_s=_BUILD_TIMEOUT_S) and put_in_place(made, home)
