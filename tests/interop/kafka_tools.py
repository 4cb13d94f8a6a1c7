"""Apache Kafka's own log dump, from jars that Maven finds by their names."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tailrace.spark.java import OLDEST_JAVA, java_version

VERSION = "4.1.0"
JARS = Path(sys.prefix) / f"kafka-{VERSION}"
"""Fetched once, some 50 MB."""

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tailrace</groupId>
  <artifactId>kafka-tools</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""
_TIMEOUT_S = 100


class Dump(NamedTuple):
    """What the tool has printed."""

    out: str
    err: str


def absent() -> str | None:
    """Why Kafka's tools cannot be run here, with the command that would bring them; None if they can."""
    if java_version("java") < OLDEST_JAVA:
        return f"java >= {OLDEST_JAVA} is not installed: apt-get install default-jre-headless"
    if not JARS.exists() and shutil.which("mvn") is None:
        return "mvn is not installed: apt-get install maven"
    if not JARS.exists() and not _fetch():
        return f"Maven cannot fetch org.apache.kafka:kafka_2.13:{VERSION} here"
    return None


def _fetch() -> bool:
    with tempfile.TemporaryDirectory(dir=JARS.parent, prefix="kafka-") as work:
        Path(work, "pom.xml").write_text(_POM)
        copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={work}/jars"]
        try:
            subprocess.run(copy, cwd=work, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as fault:
            sys.stderr.write(f"{fault}\n{fault.stdout}\n")
            return False
        # Renamed when all are there, so that a run that is cut short leaves no half of them.
        os.replace(Path(work, "jars"), JARS)
    return True


def dump_log_segments(directory: Path, files: Sequence[str], *options: str) -> Dump:
    """Run the tool in this directory over these of its files."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command += [f"-D{name}=UTF-8" for name in ("file.encoding", "sun.stdout.encoding", "stdout.encoding")]
    command += ["-cp", f"{JARS}/*", "kafka.tools.DumpLogSegments", *options, "--files", ",".join(files)]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, encoding="utf-8", timeout=_TIMEOUT_S, check=False
    )
    faults = [line for line in done.stderr.splitlines() if not line.startswith("SLF4J")]
    assert done.returncode == 0, "\n".join(faults)
    return Dump(done.stdout, "\n".join(faults))
