"""Fuzzes one target in this process: `python -m fuzz.worker TARGET SECONDS SEED DIRECTORY guided|random`.

With atheris (libFuzzer for Python) coverage guides the search, and the corpus is kept in DIRECTORY/corpus for the next
run. Without atheris, seeds are changed at random. Either way the last lines are for `fuzz.__main__` to read, and bytes
that break a promise are left in DIRECTORY/crashes.
"""

import hashlib
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

LONGEST_RUN_SECONDS = 60
"""An input may take this long; a libFuzzer timeout, and a finding."""
MOST_MEMORY_MB = 1_500

GUIDED = importlib.util.find_spec("atheris") is not None
"""Whether atheris is installed: not every Python has a wheel."""


def main() -> None:
    name, seconds, seed, directory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    for part in ("corpus", "crashes", "seeds"):
        (directory / part).mkdir(parents=True, exist_ok=True)
    fuzz = _guided if sys.argv[5] == "guided" else _at_random
    fuzz(name, seconds, seed, directory)


def _guided(name: str, seconds: int, seed: int, directory: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=["tailrace"], enable_loader_override=False):
        from tailrace.protocol.source import Source

        _instrument_generated_code(Source, atheris.instrument_func)
        from fuzz.targets import TARGETS
    target = TARGETS[name]
    _write_seeds(directory / "seeds", target.seeds())
    options = [
        sys.argv[0],
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-max_len={max(target.max_bytes, 64)}",
        "-len_control=10",  # runs are short; let inputs grow sooner than a run of days would
        f"-timeout={LONGEST_RUN_SECONDS}",
        f"-rss_limit_mb={MOST_MEMORY_MB}",
        f"-artifact_prefix={directory / 'crashes'}/",
        "-print_final_stats=1",
        "-verbosity=1",
        str(directory / "corpus"),
        str(directory / "seeds"),
    ]
    atheris.Setup(options, target.check)
    atheris.Fuzz()


def _instrument_generated_code(source: Any, instrument: Callable[[Any], Any]) -> None:
    """The codecs are compiled at first use, from text: no import hook sees that text."""
    compile_plain = source.compile

    def compile_instrumented(self: Any, function: str, title: str) -> Any:
        return instrument(compile_plain(self, function, title))

    source.compile = compile_instrumented


def _write_seeds(directory: Path, seeds: Any) -> None:
    for seed in seeds:
        (directory / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)


def _at_random(name: str, seconds: int, seed: int, directory: Path) -> None:
    from fuzz.mutation import Mutator
    from fuzz.targets import TARGETS

    target = TARGETS[name]
    mutator = Mutator(list(target.seeds()), Random(seed), max_bytes=target.max_bytes)
    stop, count = time.monotonic() + seconds, 0
    while time.monotonic() < stop:
        data = mutator.next()
        count += 1
        try:
            target.check(data)
        except Exception:  # noqa: BLE001 - any exception that comes out of a target is a finding
            path = directory / "crashes" / f"crash-{hashlib.sha1(data, usedforsecurity=False).hexdigest()}"
            path.write_bytes(data)
            traceback.print_exc()
            sys.stderr.write(f"stat::number_of_executed_units: {count}\n")
            sys.exit(77)
    sys.stderr.write(f"stat::number_of_executed_units: {count}\n")


if __name__ == "__main__":
    main()
