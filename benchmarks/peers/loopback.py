"""The raw loopback as a peer: one TCP stream of iperf3, both ends on this machine."""

import json
import shutil
import subprocess
import time
from typing import NamedTuple

from benchmarks.peers.peer import Absent, free_addresses, version_of

LOOPBACK = "iperf3"
_PATIENCE_S = 60


class Throughput(NamedTuple):
    """Throughput of one stream: MB/s (1,000,000 bytes) and the receiver's CPU microseconds per MB."""

    megabytes_per_second: float
    receiver_cpu_us: float


class Failed(Exception):
    """Raised with the reason that iperf3 reports."""


def version() -> str:
    """The version of iperf3. Raises Absent."""
    return " ".join(version_of("iperf3", "--version").split()[:2])


def parse_report(report: str) -> Throughput:
    """Read what `iperf3 --json` prints. Raises Failed if it reports an error."""
    found = json.loads(report)
    if "error" in found:
        raise Failed(found["error"])
    end = found["end"]
    rate = end["sum_received"]["bits_per_second"] / 8e6
    return Throughput(rate, end["cpu_utilization_percent"]["remote_total"] / 100 * 1e6 / rate)


def measure(seconds: int) -> Throughput:
    """Run one stream. Raises Absent."""
    if shutil.which("iperf3") is None:
        raise Absent("iperf3 is not installed: apt-get install iperf3")
    host, _, port = free_addresses(1)[0].partition(":")
    server = subprocess.Popen(
        ["iperf3", "--server", "--bind", host, "--port", port],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return _run(["iperf3", "--client", host, "--port", port, "--time", str(seconds), "--json"])
    finally:
        server.kill()
        server.wait()


def _run(client: list[str]) -> Throughput:
    """Run the client, again until the server accepts the connection."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        done = subprocess.run(client, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
        try:
            return parse_report(done.stdout)
        except Failed:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
