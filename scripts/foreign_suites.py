"""Runs other projects' own tests of a broker against a node, and writes docs/experiments/foreign-tests.md anew:

    PYTHONPATH=tests:. .venv/bin/python scripts/foreign_suites.py [PROJECT...]

Beside it the same tests run against Apache Kafka on this machine. The figures go to tests/interop/suites/measured.json;
the page is made of the figures, as tests/docs does with REWRITE=1. About 20 minutes for all projects.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.peers.kafka import ONE_REPLICA
from benchmarks.results.machine import description
from interop.differential.apache import ApacheKafka
from interop.suites.foreign_suites import EVERY_SUITE, MEASURED
from interop.suites.source_suite import ForeignSuite, SuiteRun, run_suite

ROOT: Final = Path(__file__).parents[1]
WITHOUT_DELAY: Final = {"group.initial.rebalance.delay.ms": "0"}
"""A setting that images for tests have, and a node of the kit."""


def measure(suite: ForeignSuite, directory: Path) -> dict[str, object]:
    """Run the tests against both; returns the counts and the seconds, the start of the broker included."""
    ours = run_suite(suite.tests, directory, without=suite.left_out)
    _print(suite, "Tailrace", ours, ours.seconds)
    began = time.monotonic()
    with ApacheKafka({**ONE_REPLICA, **WITHOUT_DELAY, **suite.settings}) as kafka:
        started = time.monotonic() - began
        theirs = run_suite(suite.tests, directory, without=suite.left_out, elsewhere=kafka.address)
    _print(suite, "Apache Kafka", theirs, started + theirs.seconds)
    return {
        "version": suite.tests.version,
        "collected": ours.collected,
        "passed": len(ours.passed),
        "seconds": round(ours.seconds),
        "kafka_passed": len(theirs.passed),
        "kafka_seconds": round(started + theirs.seconds),
        "kafka_failed": sorted(theirs.failed),
    }


def _print(suite: ForeignSuite, broker: str, run: SuiteRun, seconds: float) -> None:
    counts = f"{len(run.passed)} passed, {len(run.failed)} failed, {len(run.skipped)} skipped"
    told = f"{suite.tests.project} {suite.tests.version} with {broker}: {counts}"
    print(f"{told}, {len(suite.left_out)} left out, {seconds:.0f} s", flush=True)
    for name, message in run.failed.items():
        print(f"  {name}: {message.partition(chr(10))[0]}", flush=True)


def main(projects: list[str]) -> None:
    measured = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    measured["machine"] = description()
    runs = measured.setdefault("suites", {})
    for suite in EVERY_SUITE:
        if projects and suite.tests.project not in projects:
            continue
        if why := suite.tests.absent():
            sys.exit(why)
        with tempfile.TemporaryDirectory() as directory:
            runs[suite.tests.project] = measure(suite, Path(directory))
        MEASURED.write_text(json.dumps(measured, indent=2) + "\n")
    tests = [sys.executable, "-m", "pytest", "-q", "tests/docs/test_foreign_tests.py"]
    sys.exit(subprocess.run(tests, cwd=ROOT, env={**os.environ, "REWRITE": "1"}, check=False).returncode)


if __name__ == "__main__":
    main(sys.argv[1:])
