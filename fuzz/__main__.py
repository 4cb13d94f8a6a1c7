"""`make fuzz`: every target for some seconds, then mutated frames against a node; a table of what was done.

    make fuzz                                    20 s a target, 10,000 mutations of every API (about ten minutes)
    make fuzz ARGS="--seconds 600"               longer
    make fuzz ARGS="--targets recovery,kernels"  some
    make fuzz ARGS="--seconds 5 --mutations 0"   no node
    make fuzz ARGS="--seconds 0"                 the node alone; how long an honest client waits is part of the verdict

Exit status 1 if something was found. Bytes that broke a promise are in build/fuzz/TARGET/crashes; once the
fault is fixed, move them to fuzz/regressions/TARGET, where `make test` feeds them to the target for ever.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fuzz.hostile_node import Verdict, attack_node
from fuzz.targets import TARGETS, Target
from fuzz.worker import GUIDED

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "fuzz"
_START_UP_SECONDS = 120


class Outcome(NamedTuple):
    """The result of one target."""

    executions: int
    coverage: int
    """Branches that were reached, 0 if the run does not count branches."""
    findings: tuple[Path, ...]


def main() -> None:
    options = _options()
    if not options.guided:
        print("Without atheris (it has no wheel for every Python) changes are random, and coverage is not counted.")
    findings = 0
    targets = [TARGETS[name] for name in options.targets]
    with ThreadPoolExecutor(options.jobs) as jobs:
        for target, (outcome, seconds) in zip(targets, jobs.map(partial(_run, options), targets), strict=True):
            findings += len(outcome.findings)
            _print_target(target, outcome, seconds)
    if options.mutations:
        verdict = attack_node(options.mutations, options.seed, say=print, longest_trip_ms=options.round_trip_ms or None)
        _print_node(verdict)
        findings += len(verdict.faults)
    print(f"{findings} findings")
    sys.exit(1 if findings else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz ARGS=")
    parser.add_argument("--seconds", type=int, default=20, help="per target; 0: none (20)")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="targets at a time (2)")
    parser.add_argument("--targets", type=_names, default=",".join(TARGETS), help=f"of {', '.join(TARGETS)} (all)")
    parser.add_argument("--random", dest="guided", action="store_false", help="do without atheris")
    parser.set_defaults(guided=GUIDED)
    parser.add_argument("--round-trip-ms", type=float, default=100, help="the longest allowed; 0: only told (100)")
    parser.add_argument("--mutations", type=int, default=10_000, help="of each API, against a node (10,000)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000, help="0 to 2^31 (from the clock)")
    options = parser.parse_args()
    if isinstance(options.targets, str):
        options.targets = _names(options.targets)
    if not options.seconds:
        options.targets = []
    print(f"seed {options.seed}")
    return options


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in TARGETS:
            raise argparse.ArgumentTypeError(f"{name} is not one of {', '.join(TARGETS)}")
    return names


def _run(options: argparse.Namespace, target: Target) -> tuple[Outcome, float]:
    directory = WORK / target.name
    shutil.rmtree(directory / "crashes", ignore_errors=True)
    command = [sys.executable, "-m", "fuzz.worker", target.name, str(options.seconds), str(options.seed)]
    command += [str(directory), "guided" if options.guided else "random"]
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=options.seconds + _START_UP_SECONDS,
        check=False,
    )
    (directory / "log.txt").write_text(done.stdout + done.stderr)
    findings = tuple(sorted((directory / "crashes").iterdir()))
    if done.returncode and not findings:
        sys.exit(f"{target.name} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4_000:]}")
    outcome = Outcome(
        _last_number(r"number_of_executed_units: (\d+)", done.stderr),
        _last_number(r" cov: (\d+)", done.stderr),
        findings,
    )
    return outcome, time.monotonic() - started


def _last_number(pattern: str, text: str) -> int:
    numbers = re.findall(pattern, text)
    return int(numbers[-1]) if numbers else 0


def _print_target(target: Target, outcome: Outcome, seconds: float) -> None:
    coverage = f"coverage {outcome.coverage:5}" if outcome.coverage else "coverage     -"
    print(f"{target.name:18} {outcome.executions:10,} executions in {seconds:4.0f} s  {coverage}  ", end="")
    print("nothing found" if not outcome.findings else "FOUND", flush=True)
    for path in outcome.findings:
        print(f"    breaks the promise: {target.promise}\n    {path.relative_to(ROOT)}")
    if outcome.findings:
        log = (WORK / target.name / "log.txt").read_text(errors="replace")
        print("".join(f"    | {line}\n" for line in log.splitlines() if " cov: " not in line)[-3_000:])


def _print_node(verdict: Verdict) -> None:
    print(verdict.summary)
    for fault in verdict.faults:
        print(f"    FOUND: {fault}")


if __name__ == "__main__":
    main()
