"""The lanes of `make test` have every test file once, and a lane that ends badly shows."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import pytest

import lanes
from turns import ROOT, turn_named

SUMMARY = "3 passed, 0 failed, 1 skipped"


class EndedRun:
    """A process of pytest with this output and this end."""

    def __init__(self, output: str, end: int | type[BaseException]) -> None:
        self.stdout = io.StringIO(output)
        self._end = end

    def wait(self) -> int:
        if isinstance(self._end, int):
            return self._end
        raise self._end


Run = Callable[[Mapping[str, EndedRun], str], int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs lanes that have ended, in a turn."""

    def run_lanes(ended: Mapping[str, EndedRun], turn: str) -> int:
        processes = iter(ended.values())

        def popen(command: Sequence[str], **_: object) -> EndedRun:
            return next(processes)

        monkeypatch.setenv("TURN", turn)
        monkeypatch.setattr(lanes, "turn", lambda: turn_named(turn))
        monkeypatch.setattr(lanes, "compile_tests", lambda processes: None)
        monkeypatch.setattr(lanes, "make_spark_classes", lambda: None)
        monkeypatch.setattr(lanes, "lanes", lambda: tuple(lanes.Lane(name, (name,), 1, 0) for name in ended))
        monkeypatch.setattr("lanes.subprocess.Popen", popen)
        return lanes.run_lanes()

    return run_lanes


def lanes_of(file: str) -> list[str]:
    def has(lane: lanes.Lane) -> bool:
        return file not in lane.left_out and any(file == path or file.startswith(f"{path}/") for path in lane.paths)

    return [lane.name for lane in lanes.lanes() if has(lane)]


def test_every_test_file_is_in_one_lane() -> None:
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(files) > 300
    assert {file: found for file in files if len(found := lanes_of(file)) != 1} == {}


def test_three_tests_of_all_lanes_together_may_run_a_second_time() -> None:
    """Lanes without foreign programs have no second run."""
    second_runs = {lane.name: lane.second_runs for lane in lanes.lanes()}
    assert second_runs.pop("pure") == 0
    assert sum(second_runs.values()) == 3
    assert 0 not in second_runs.values()
    spark, *_ = lanes.lanes()
    place = spark.arguments.index("--max-suite-reruns")
    assert spark.arguments[place + 1] == str(spark.second_runs)


def test_counts_of_lanes_are_added_up(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run({"a": EndedRun(f"{SUMMARY}\n", 0), "b": EndedRun("2 passed, 0 failed, 0 skipped\n", 0)}, "0") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "5 passed, 0 failed, 1 skipped (turn 0 of 8)"


def test_a_summary_that_a_failed_test_quotes_does_not_count(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    output = f"{SUMMARY}\n1 passed, 1 failed, 0 skipped\nFAILED tests/test_a.py::test_b\n"
    assert run({"a": EndedRun(output, 1)}, "0") == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "FAILED tests/test_a.py::test_b",
        "1 passed, 1 failed, 0 skipped (turn 0 of 8)",
    ]


def test_a_lane_that_crashes_before_its_summary_is_named(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run({"a": EndedRun(f"{SUMMARY}\n", 0), "b": EndedRun("....", -11)}, "0") == -11
    assert "the lane b ended with exit code -11, perhaps before its last test\n" in capsys.readouterr().out


@pytest.mark.parametrize(("turn", "code"), [("0", 5), ("all", 5), ("rest-of-0", 0)])
def test_only_in_the_rest_of_a_turn_a_lane_may_have_no_test(run: Run, turn: str, code: int) -> None:
    assert run({"a": EndedRun(f"{SUMMARY}\n", 0), "b": EndedRun("no tests ran\n", 5)}, turn) == code


def test_lanes_are_not_interrupted_a_second_time(run: Run) -> None:
    with pytest.raises(KeyboardInterrupt):  # and not AttributeError: no signal is sent to the processes
        run({"a": EndedRun("", KeyboardInterrupt)}, "0")


def test_with_arguments_there_is_one_run_of_what_they_choose() -> None:
    chosen = [
        "tests/architecture/test_turns.py",
        "-k",
        "listed_file or unknown_turn and 8",
        "-n0",
        "--collect-only",
        "-q",
    ]
    done = subprocess.run(
        [sys.executable, "tests/lanes.py", *chosen],
        cwd=ROOT,
        env={**os.environ, "TURN": "all"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    assert sorted(names) == [
        "test_an_unknown_turn_is_refused[8]",
        "test_an_unknown_turn_is_refused[rest-of-8]",
        "test_every_listed_file_exists_and_stands_there_once",
    ]
