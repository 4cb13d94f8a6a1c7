"""The table of Kafka's scripts: commands answer the left side with the right side."""

import re
import shlex
import subprocess
from pathlib import Path

from tailrace.cli.kafka_scripts import read_line

PAGE = Path(__file__).parents[2] / "docs/command-line.md"


def test_each_line_of_kafka_is_answered_with_the_line_beside_it() -> None:
    rows = re.findall(r"^\| `(kafka-.*?)` \| `tailrace (.*?)` \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) > 15
    for typed, ours in rows:
        assert read_line(shlex.split(typed)).answer == f"in Tailrace's words: tailrace {ours}"


def test_the_line_of_shell_takes_the_address_of_a_ready_line(tmp_path: Path) -> None:
    (line,) = re.findall(r"^export TAILRACE_BOOTSTRAP=\$\((sed .*)\)$", PAGE.read_text(), re.MULTILINE)
    lines = "other words\ntailrace ready: 127.0.0.1:38003 dev metrics=127.0.0.1:9\n"
    (tmp_path / "ready.txt").write_text(lines)
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "127.0.0.1:38003\n"
