"""The table of Kafka's scripts: commands answer the left side with the right side."""

import re
import shlex
from pathlib import Path

from tailrace.cli.kafka_scripts import read_line

PAGE = Path(__file__).parents[2] / "docs/command-line.md"


def test_each_line_of_kafka_is_answered_with_the_line_beside_it() -> None:
    rows = re.findall(r"^\| `(kafka-.*?)` \| `tailrace (.*?)` \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) > 15
    for typed, ours in rows:
        assert read_line(shlex.split(typed)).answer == f"in Tailrace's words: tailrace {ours}"
