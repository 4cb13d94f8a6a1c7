"""The files of the kernel about a process are read as proc(5) describes them."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from benchmarks.peers.process import Process, cpu_clock, cpu_ticks, resident_bytes, tree_cpu_seconds

STAT = (
    "4242 (a (b) c) S 1 4242 4242 0 -1 4194560 1 2 3 4 250 50 7 8 20 0 9 0 100 1000 200 18446744073709551615 1 1 0 0\n"
)
STATUS = "Name:\tjava\nVmPeak:\t 9000 kB\nVmRSS:\t  387368 kB\nRssAnon:\t 300 kB\n"


def test_cpu_time_is_user_and_system_time_whatever_the_name_of_the_program() -> None:
    assert cpu_ticks(STAT) == 250 + 50


def test_the_cpu_time_of_this_process_is_what_the_system_call_says() -> None:
    before = sum(os.times()[:2])
    ticks = cpu_ticks(Path(f"/proc/{os.getpid()}/stat").read_text())
    after = sum(os.times()[:2])
    per_second = os.sysconf("SC_CLK_TCK")
    assert before * per_second - 2 <= ticks <= after * per_second + 2


def test_the_clock_of_a_process_is_its_cpu_time() -> None:
    before = time.process_time()
    clock = cpu_clock(os.getpid())
    assert before <= clock <= time.process_time()


def test_a_process_that_has_ended_has_no_clock(tmp_path: Path) -> None:
    process = python("", tmp_path)
    process.start()
    pid = process.pid
    process.kill()
    with pytest.raises(OSError, match="Invalid argument"):
        cpu_clock(pid)


def test_resident_memory_is_in_bytes() -> None:
    assert resident_bytes(STATUS) == 387368 * 1024


def test_a_process_that_has_ended_has_no_memory() -> None:
    with pytest.raises(ValueError, match="has ended"):
        resident_bytes("Name:\tjava\nState:\tZ (zombie)\n")


def python(program: str, tmp_path: Path) -> Process:
    return Process([sys.executable, "-c", program], output=tmp_path / "output")


def wait_for(process: Process, text: str) -> None:
    while text not in process.output():
        assert process.is_running, process.output()
        time.sleep(0.005)


def test_a_process_is_stopped_in_order_and_can_be_started_again(tmp_path: Path) -> None:
    program = "import signal, sys; signal.signal(15, lambda *_: sys.exit(print('stopped'))); print('up', flush=True); "
    process = python(program + "signal.pause()", tmp_path)
    process.start()
    wait_for(process, "up")
    first = process.pid
    process.stop()
    assert process.output() == "up\nstopped\n"
    process.start()
    assert process.pid != first
    process.kill()
    assert not process.is_running


def test_a_killed_process_is_gone_and_killing_again_does_nothing(tmp_path: Path) -> None:
    process = python(
        "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()", tmp_path
    )
    process.start()
    wait_for(process, "up")
    pid = process.pid
    process.kill()
    process.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIG_DFL)


def test_a_running_process_has_cpu_time_and_memory(tmp_path: Path) -> None:
    process = python("print(sum(range(3_000_000)), flush=True); import sys; sys.stdin.read()", tmp_path)
    process.start()
    try:
        wait_for(process, "\n")
        assert process.cpu_seconds() > 0
        assert 1 < process.resident_megabytes() < 1_000
    finally:
        process.kill()


def test_the_cpu_time_below_a_process_is_that_of_children_that_run_and_of_those_that_have_ended(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    wait = "print('up', flush=True); input()"
    program = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {burn!r}], check=True)\n"
        f"subprocess.run([sys.executable, '-c', {burn + wait!r}])\n"
    )
    process = python(program, tmp_path)
    process.start()
    try:
        wait_for(process, "up")
        assert process.cpu_seconds() < tree_cpu_seconds(process.pid) - 0.55
    finally:
        process.kill()
