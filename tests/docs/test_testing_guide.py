"""The Python blocks of the page about tests run as they stand, each as a file of tests of its own."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "testing.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def _run(directory: Path) -> str:
    """Run the tests in the directory; the output."""
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--strict-markers"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(directory)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=250,
    )
    return done.stdout + done.stderr


def test_the_blocks_of_tests_pass(tmp_path: Path) -> None:
    tests = [block for block in BLOCKS if "def test_" in block]
    for number, block in enumerate(tests):
        (tmp_path / f"test_block_{number}.py").write_text(block)
    found = sum(len(re.findall(r"^ *(?:async )?def test_", block, re.MULTILINE)) for block in tests)
    output = _run(tmp_path)
    assert f"{found} passed" in output, output


def test_the_fixture_of_a_project_takes_the_place_of_the_kits(tmp_path: Path) -> None:
    (conftest,) = (block for block in BLOCKS if "def tailrace_cluster" in block)
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_three.py").write_text(
        "def test_three(tailrace_cluster, tailrace_topic):\n    assert tailrace_cluster.broker_ids == [1, 2, 3]\n"
    )
    assert "1 passed" in (output := _run(tmp_path)), output
