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
"""Later versions of Spark load it too, before Maven has one of theirs."""
CONNECTOR_JARS = Path(sys.prefix) / f"spark-connector-{CONNECTOR_VERSION}"
"""Spark's Kafka connector with what Spark does not bring itself, some 10 MB."""

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
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-tools</artifactId>
      <version>{VERSION}</version>
      <exclusions>
        <exclusion><groupId>org.apache.kafka</groupId><artifactId>connect-runtime</artifactId></exclusion>
        <exclusion><groupId>org.apache.kafka</groupId><artifactId>connect-json</artifactId></exclusion>
      </exclusions>
    </dependency>
  </dependencies>
</project>
"""
_SHELL_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tailrace</groupId>
  <artifactId>kafka-shell</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-shell</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""
_PROGRAM_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tailrace</groupId>
  <artifactId>kafka-programs</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>connect-file</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>connect-mirror</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-streams</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""
_CONNECTOR_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tailrace</groupId>
  <artifactId>spark-connector</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId>
      <artifactId>{CONNECTOR}</artifactId>
      <version>{CONNECTOR_VERSION}</version>
      <exclusions>
        <exclusion><groupId>org.apache.hadoop</groupId><artifactId>*</artifactId></exclusion>
        <exclusion><groupId>org.apache.spark</groupId><artifactId>spark-tags_2.13</artifactId></exclusion>
        <exclusion><groupId>org.scala-lang</groupId><artifactId>*</artifactId></exclusion>
        <exclusion><groupId>org.scala-lang.modules</groupId><artifactId>*</artifactId></exclusion>
        <exclusion><groupId>org.slf4j</groupId><artifactId>*</artifactId></exclusion>
        <exclusion><groupId>org.xerial.snappy</groupId><artifactId>*</artifactId></exclusion>
        <exclusion><groupId>at.yawk.lz4</groupId><artifactId>*</artifactId></exclusion>
        <exclusion><groupId>com.google.code.findbugs</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>
    </dependency>
  </dependencies>
</project>
"""


def absent() -> str | None:
    """The reason why Kafka cannot run here, with the command that would bring Kafka; None if Kafka can run."""
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
