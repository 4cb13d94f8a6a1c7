"""Apache Kafka's own command-line tools, from the jars that the benchmarks use too."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.downloads.kafka_jars import JARS, SHELL_JARS, absent, shell_absent
from interop.java_machine import SMALL, Ended, tool_machine

__all__ = ["JARS", "Dump", "absent", "command", "dump_log_segments", "java", "run", "shell_absent"]

_TIMEOUT_S = 100
_CLASSES = "classes.jsa"
"""Beside the jars: the classes of a tool as Java has parsed and verified them. A start with the archive takes half the
processor time."""

MAIN_CLASSES = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-shell": "org.apache.kafka.shell.MetadataShell",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}
"""The classes that Kafka's scripts start, by the names of the scripts."""
_SHELL = "kafka-metadata-shell"


_ADMINISTRATIVE = (
    "kafka-broker-api-versions",
    "kafka-cluster",
    "kafka-acls",
    "kafka-configs",
    "kafka-consumer-groups",
    "kafka-delete-records",
    "kafka-features",
    "kafka-get-offsets",
    "kafka-groups",
    "kafka-leader-election",
    "kafka-log-dirs",
    "kafka-metadata-quorum",
    "kafka-reassign-partitions",
    "kafka-topics",
    "kafka-transactions",
)
"""Tools that ask a cluster and end share a machine. Other tools read stdin, or print when their machine ends."""


class Dump(NamedTuple):
    """The output of a tool."""

    out: str
    err: str


def command(script: str, *options: str) -> list[str]:
    """The command that Kafka's script of this name would start."""
    jars = SHELL_JARS if script == _SHELL else JARS
    # A Java that finds an archive of another Java or of other jars does without it, and need not say so on stdout.
    archive = jars / _CLASSES
    classes = [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"] if archive.exists() else []
    return java(*classes, "-cp", f"{jars}/*", MAIN_CLASSES[script], *options)


def archive_classes(bootstrap: str) -> None:
    """Have a tool keep the classes that it loads while it asks this node; no harm if it cannot."""
    entity = ("--entity-type", "brokers", "--entity-name", "1")
    _archive_classes(JARS, "kafka-configs", "--bootstrap-server", bootstrap, "--describe", *entity)


def archive_classes_of_shell(metadata_log: Path) -> None:
    """The same of the metadata shell, which reads this segment."""
    _archive_classes(SHELL_JARS, _SHELL, "--snapshot", str(metadata_log), "ls", "image/topics/byName")


def _archive_classes(jars: Path, script: str, *options: str) -> None:
    made = jars / f"classes-{os.getpid()}.part"
    tool = ("-cp", f"{jars}/*", MAIN_CLASSES[script], *options)
    subprocess.run(
        java(f"-XX:ArchiveClassesAtExit={made}", *tool), capture_output=True, timeout=_TIMEOUT_S, check=False
    )
    if made.exists():
        made.replace(jars / _CLASSES)


def are_classes_archived(jars: Path) -> bool:
    """Whether the archive has been made, or there are no jars to make it from."""
    return (jars / _CLASSES).exists() or not jars.exists()


def java(*options: str) -> list[str]:
    """Java for programs that are small and short-lived."""
    return ["java", *SMALL, *options]


def run(script: str, *options: str, stdin: str = "", directory: Path | None = None) -> Dump:
    """Run the tool, which must end well; returns what the tool prints."""
    if script in _ADMINISTRATIVE:
        done = tool_machine().run(MAIN_CLASSES[script], options)
    else:
        process = subprocess.run(
            command(script, *options),
            cwd=directory,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            timeout=_TIMEOUT_S,
            check=False,
        )
        done = Ended(process.returncode, process.stdout, process.stderr)
    faults = "\n".join(line for line in done.err.splitlines() if not line.startswith("SLF4J"))
    assert done.code == 0, f"{script} {' '.join(options)}\n{done.out}\n{faults}"
    return Dump(done.out, faults)


def dump_log_segments(directory: Path, files: Sequence[str], *options: str) -> Dump:
    """Run kafka-dump-log in this directory over these files of the directory."""
    return run("kafka-dump-log", *options, "--files", ",".join(files), directory=directory)
