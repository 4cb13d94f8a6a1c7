"""Runs the lines that are asked for, every line by default, and shows a table of each line.

`--save` also writes each line's section into docs/benchmarks/README.md or a page of docs/experiments, with a
chart; sections of other lines stay.
"""

import argparse
import signal
import subprocess
import sys

from benchmarks.lines import LINES
from benchmarks.peers.peer import NotReady
from benchmarks.results import chart, machine, page, screen
from benchmarks.results.rounds import Rounds
from tailrace.model.errors import KafkaError

FAULTS = (OSError, AssertionError, KafkaError, NotReady, RuntimeError, subprocess.SubprocessError)
"""Failures of a server or a client; any other exception is a fault of the benchmark."""


def main() -> None:
    options = _options()
    # Servers are stopped on the way out, so that the way out has to be taken.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    head = machine.description()
    screen.console.print(head, highlight=False)
    failed = [name for name in options.lines or LINES if not _run(name, options, head)]
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


def _run(name: str, options: argparse.Namespace, head: str) -> bool:
    """Measure one line, show and save its section. A line that fails is reported and does not stop the other lines."""
    line = LINES[name]
    screen.console.rule(line.help)
    rounds = Rounds(options.rounds or line.rounds, screen.show_round, warm_ups=line.warm_ups)
    try:
        section = line.measure(rounds, options.size or line.size)
    except FAULTS:
        screen.console.print_exception(max_frames=10)
        return False
    screen.show(section)
    if options.save:
        where = page.path_of(line.experiment)
        page.save(section, head, where)
        if section.bars:
            chart.draw(section, where.parent / page.chart_name(name))
    return True


def _line(text: str) -> str:
    if text not in LINES:
        raise argparse.ArgumentTypeError(f"there is no line {text!r}; there are {', '.join(LINES)}")
    return text


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def _options() -> argparse.Namespace:
    lines = "\n".join(f"  {name:23}{line.help} ({line.rounds} rounds)" for name, line in LINES.items())
    parser = argparse.ArgumentParser(
        prog="make bench",
        description=f'{__doc__}\nmake bench ARGS="latency start --rounds 3"\n\nlines:\n{lines}',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("lines", nargs="*", type=_line, metavar="LINE", help="which; all by default")
    parser.add_argument("--rounds", type=_positive, help="how many count, of each line")
    parser.add_argument(
        "--size",
        "--partitions",
        type=_positive,
        help="partitions, or megabytes of metadata, of the lines that have a size",
    )
    parser.add_argument("--save", action="store_true", help="write docs/benchmarks and docs/experiments too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
