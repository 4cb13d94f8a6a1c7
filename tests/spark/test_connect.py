"""Reads, writes and the test kit in a Spark Connect session: tests of other files once more, in a process of their own.

A process has classic sessions or sessions of Connect, not both.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.spark, pytest.mark.timeout(900)]

FOLDER = Path(__file__).parent
KILLED = "test_kit.py::test_an_exactly_once_pipeline_loses_and_repeats_nothing_when_it_is_killed"
TESTS = (
    "test_batch_read.py::test_only_the_columns_of_the_users_schema_are_read",
    "test_sink.py::test_rows_are_written_once_in_every_codec[lz4]",
    "test_sink.py::test_a_stream_is_written_and_goes_on_after_a_restart",
    f"{KILLED}[commit]",
    "test_kit.py::test_a_query_that_fails_without_a_kill_raises_its_own_error",
    "test_kit.py::test_the_rows_of_frames_are_compared",
)
"""A read, a write, a stream at least once, and the tests in which the kit meets another class of Connect.

pytest refuses a name that is not there.
"""
MORE = (
    "test_batch_read.py::test_explicit_offsets_bound_a_read",
    "test_batch_read.py::test_a_temporary_view_reads_the_topic",
    "test_sink.py::test_nulls_and_headers_survive",
    f"{KILLED}[write]",
    f"{KILLED}[committed]",
    "test_kit.py::test_a_run_ends_with_the_records_that_are_there_and_a_restart_goes_on",
    "test_kit.py::test_a_batch_write_is_killed_too",
    "test_kit.py::test_a_query_that_does_not_end_is_stopped",
    "test_kit.py::test_frames_of_another_schema_differ",
    "test_kit.py::test_a_stream_is_no_rows",
)
"""More tests that a Connect session can run."""


@pytest.mark.parametrize(
    "tests", [pytest.param(TESTS, id="main ones"), pytest.param(MORE, id="more", marks=pytest.mark.soak)]
)
def test_spark_connect(tests: tuple[str, ...]) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "STRICT", "TEST_LANE"))
    }
    # SPARK_TESTING lets the Connect server take a free port; the cases may be of another turn than this run.
    environment |= {"SPARK_TEST_SESSION": "connect", "SPARK_TESTING": "1", "TURN": "all"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *(str(FOLDER / name) for name in tests)]
    run = subprocess.run(command, cwd=FOLDER.parents[1], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-10_000:]
    assert f"{len(tests)} passed, 0 failed, 0 skipped" in run.stdout
