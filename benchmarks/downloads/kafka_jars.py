"""Apache Kafka's own programs, and Spark's connector: jars that Maven finds by their names, kept in the environment."""

import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from benchmarks.downloads.fetching import fetched, put_in_place
from tailrace.spark.java import OLDEST_JAVA, java_version

VERSION = "4.1.0"
JARS = Path(sys.prefix) / f"kafka-tools-{VERSION}"
"""The server and the command-line tools. Fetched once, some 45 MB."""
SHELL_JARS = Path(sys.prefix) / f"kafka-shell-{VERSION}"
"""The metadata shell, which brings a server of its own: 45 MB more."""
PROGRAM_JARS = Path(sys.prefix) / f"kafka-programs-{VERSION}"
"""Connect with its file connectors, MirrorMaker 2 and Streams: 110 MB, most of it RocksDB for many machines."""

CONNECTOR = "spark-sql-kafka-0-10_2.13"
CONNECTOR_VERSION = "4.2.0"
"""The version of the connector. Later versions of Spark load it too, when Maven has no connector of their version
yet."""
CONNECTOR_JARS = Path(sys.prefix) / f"spark-connector-{CONNECTOR_VERSION}"
"""Spark's Kafka connector with what Spark does not bring itself, some 10 MB."""


def _project(artifact: str, *dependencies: str) -> str:
    """A project that Maven reads, with these dependencies."""
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tailrace</groupId>
  <artifactId>{artifact}</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{"".join(dependencies)}  </dependencies>
</project>
"""


def _dependency(artifact: str, *excluded: str) -> str:
    """A dependency `group:artifact:version`, without these dependencies of its own, each `group:artifact`."""
    group_id, artifact_id, version = artifact.split(":")
    exclusions = ""
    if excluded:
        exclusion = "        <exclusion><groupId>{}</groupId><artifactId>{}</artifactId></exclusion>\n"
        listed = "".join(exclusion.format(*name.split(":")) for name in excluded)
        exclusions = f"      <exclusions>\n{listed}      </exclusions>\n"
    return f"""    <dependency>
      <groupId>{group_id}</groupId>
      <artifactId>{artifact_id}</artifactId>
      <version>{version}</version>
{exclusions}    </dependency>
"""


_POM = _project(
    "kafka-tools",
    _dependency(f"org.apache.kafka:kafka_2.13:{VERSION}"),
    _dependency(
        f"org.apache.kafka:kafka-tools:{VERSION}",
        "org.apache.kafka:connect-runtime",
        "org.apache.kafka:connect-json",
    ),
)
_SHELL_POM = _project("kafka-shell", _dependency(f"org.apache.kafka:kafka-shell:{VERSION}"))
_PROGRAM_POM = _project(
    "kafka-programs",
    _dependency(f"org.apache.kafka:connect-file:{VERSION}"),
    _dependency(f"org.apache.kafka:connect-mirror:{VERSION}"),
    _dependency(f"org.apache.kafka:kafka-streams:{VERSION}"),
    _dependency("org.slf4j:slf4j-simple:1.7.36"),
)
_CONNECTOR_POM = _project(
    "spark-connector",
    _dependency(
        f"org.apache.spark:{CONNECTOR}:{CONNECTOR_VERSION}",
        "org.apache.hadoop:*",
        "org.apache.spark:spark-tags_2.13",
        "org.scala-lang:*",
        "org.scala-lang.modules:*",
        "org.slf4j:*",
        "org.xerial.snappy:*",
        "at.yawk.lz4:*",
        "com.google.code.findbugs:*",
    ),
)


def absent() -> str | None:
    """The reason why Kafka cannot run here, with the command that installs Kafka; None if Kafka can run."""
    return _absent(JARS, _POM, f"org.apache.kafka:kafka-tools:{VERSION}")


def shell_absent() -> str | None:
    """The same for the metadata shell."""
    return _absent(SHELL_JARS, _SHELL_POM, f"org.apache.kafka:kafka-shell:{VERSION}")


def programs_absent() -> str | None:
    """The same for Connect, MirrorMaker 2 and Streams."""
    return _absent(PROGRAM_JARS, _PROGRAM_POM, f"org.apache.kafka:connect-mirror:{VERSION}")


def connector_absent() -> str | None:
    """The same for Spark's connector."""
    return _absent(CONNECTOR_JARS, _CONNECTOR_POM, f"org.apache.spark:{CONNECTOR}:{CONNECTOR_VERSION}")


def _absent(jars: Path, pom: str, artifact: str) -> str | None:
    if java_version("java") < OLDEST_JAVA:
        return f"java >= {OLDEST_JAVA} is not installed: apt-get install default-jre-headless"
    if not jars.exists() and shutil.which("mvn") is None:
        return "mvn is not installed: apt-get install maven"
    if not jars.exists() and not _fetch(jars, pom):
        return f"Maven cannot fetch {artifact} here; to try it: mvn dependency:get -Dartifact={artifact}"
    return None


@cache
def _fetch(jars: Path, pom: str) -> bool:
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix="kafka-") as work:
        Path(work, "pom.xml").write_text(pom)
        copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={work}/jars"]
        return fetched(copy, directory=Path(work)) and put_in_place(Path(work, "jars"), jars)
