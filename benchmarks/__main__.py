"""Runs every comparison and prints it as a table; `--save` also writes docs/benchmarks/README.md.

Rounds of the peers alternate, so that a noisy minute hurts all of them; the median counts and every round is shown.
"""

import os
import platform
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import Peer, mock_cluster, tailrace
from tailrace.client.blocking import Admin
from tailrace.protocol.records.kernels import KERNEL

ROUNDS = 5
TOPICS = 16
PARTITIONS = 4
SIZES = {100: 1_000_000, 1000: 280_000}
"""Record size in bytes -> records per round. The mock keeps 5 MB per partition: all of it must fit."""

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "README.md"


@dataclass
class Series:
    """One peer's rounds in one test."""

    megabytes_per_second: list[float] = field(default_factory=list)
    cpu_us_per_megabyte: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.megabytes_per_second)


Results = dict[str, dict[str, Series]]


def measure(peer: Peer, test: str, topic: str, record_bytes: int, count: int) -> tuple[float, float]:
    """MB/s (1 MB = 1,000,000 bytes of values) and the server's CPU microseconds per MB, in one round."""
    cpu = peer.cpu_seconds()
    command = [sys.executable, "-m", "benchmarks.load", test, peer.bootstrap, topic]
    command += [str(number) for number in (record_bytes, count, TOPICS, PARTITIONS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.exit(f"{test} against {peer.name} failed: {done.stderr.strip()}")
    megabytes = record_bytes * count / 1e6
    return megabytes / float(done.stdout), (peer.cpu_seconds() - cpu) * 1e6 / megabytes


def run(peers: list[Peer]) -> Results:
    """All tests, all rounds."""
    results: Results = {}
    for record_bytes, count in SIZES.items():
        for round_number in range(ROUNDS):
            for peer in peers:
                topic = f"bench-{record_bytes}-{round_number}"
                prepare(peer, topic)
                for test in ("produce", "consume"):
                    rate, cpu = measure(peer, test, topic, record_bytes, count)
                    series = results.setdefault(f"{test} {record_bytes} B", {}).setdefault(peer.name, Series())
                    series.megabytes_per_second.append(rate)
                    series.cpu_us_per_megabyte.append(cpu)
                    print(f"round {round_number + 1}  {test:8}{record_bytes:5} B  {peer.name:22}{rate:8.0f} MB/s")
    return results


def touch_pages(megabytes: int) -> None:
    """Make the machine's memory ready for that much new page cache, for every peer alike.

    On a virtual machine the first touch of a page costs up to ten times what writing to it does, and whoever comes
    first would pay for it. Files written and removed just before leave touched pages behind.
    """
    with tempfile.NamedTemporaryFile(dir=tempfile.gettempdir()) as scratch:
        for _ in range(megabytes):
            scratch.write(bytes(1_000_000))


def prepare(peer: Peer, topic: str) -> None:
    touch_pages(400)
    if "mock" not in peer.name:  # the mock makes topics when asked for them
        with Admin(peer.bootstrap) as admin:
            admin.create_topics({f"{topic}-{number}": PARTITIONS for number in range(TOPICS)})


def table(results: Results, reference: str) -> str:
    """Markdown: medians, ratio to the reference, CPU, raw rounds."""
    lines = [
        f"| test | server | median MB/s | x {reference} | server CPU us/MB | rounds MB/s |",
        "|---|---|---:|---:|---:|---|",
    ]
    for test, by_peer in results.items():
        for name, series in by_peer.items():
            ratio = series.median / by_peer[reference].median
            cpu = statistics.median(series.cpu_us_per_megabyte)
            rounds = " ".join(f"{rate:.0f}" for rate in series.megabytes_per_second)
            lines.append(f"| {test} | {name} | {series.median:.0f} | {ratio:.2f} | {cpu:.0f} | {rounds} |")
    return "\n".join(lines)


def head() -> str:
    """What the figures hold for."""
    return (
        f"Python {platform.python_version()}, {os.cpu_count()} cores, Linux {platform.release()}, kernel: {KERNEL}. "
        f"Client: librdkafka (confluent-kafka), {TOPICS} topics of {PARTITIONS} partitions, acks=1, linger 5 ms, no "
        "compression. Page cache: each round writes new topics on pages that were touched just before; `flushed` runs "
        "a group fsync behind the writes, `page-cache` none. The mock is librdkafka's own broker in C: it keeps "
        "records in memory only, 5 MB a partition, and checks no checksums."
    )


def main() -> None:
    print(head(), "\n")
    with ExitStack() as stack:
        peers = [stack.enter_context(mock_cluster())]
        peers += [stack.enter_context(tailrace(durability)) for durability in ("page-cache", "flushed")]
        results = run(peers)
    text = table(results, "librdkafka mock")
    print("\n" + text)
    if "--save" in sys.argv:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(
            f"# Measured beside a peer\n\n`make bench ARGS=--save` wrote this page.\n\n{head()}\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
