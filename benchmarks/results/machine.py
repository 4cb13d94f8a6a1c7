"""The machine of the figures, and the version of every program that takes part."""

import os
import platform

import confluent_kafka

from benchmarks.downloads import kafka_jars
from benchmarks.peers import kafka, loopback
from benchmarks.peers.peer import Absent, version_of
from benchmarks.results.figures import ABSENT
from tailrace.protocol.records.kernels import KERNEL


def description() -> str:
    """The machine in one sentence."""
    parts = [
        f"{os.cpu_count()} CPUs ({_cpu_name()}), shared by servers and clients",
        f"Linux {platform.release()}",
        f"Python {platform.python_version()}",
        f"Tailrace's record kernels: {KERNEL}",
        f"librdkafka {confluent_kafka.libversion()[0]}",
        _kafka(),
        _loopback(),
    ]
    return "Machine: " + "; ".join(parts) + "."


def _cpu_name() -> str:
    with open("/proc/cpuinfo") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _kafka() -> str:
    if kafka_jars.absent():
        return f"{kafka.KAFKA} {ABSENT}"
    return f"{kafka.KAFKA} {kafka_jars.VERSION} on {version_of('java', '-version')}"


def _loopback() -> str:
    try:
        return loopback.version()
    except Absent:
        return f"{loopback.LOOPBACK} {ABSENT}"
