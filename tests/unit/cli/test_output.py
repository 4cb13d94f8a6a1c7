"""The form of rows, lines and bytes."""

import json

import pytest

from tailrace.cli.output import Format, counted, one_line, readable, say, show


def test_a_table_has_a_column_per_name_and_a_dash_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"A": "long value", "B": None}, {"A": "", "B": [1, 2]}, {"A": 0, "B": {"k": "v"}}], ("A", "B"), Format.TABLE)
    assert capsys.readouterr().out == "A           B\nlong value  -\n-           1,2\n0           k=v\n"


def test_json_keeps_what_a_table_cannot_show(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"A": "вода\x1b[2J", "B": None, "C": [1, 2]}]
    show(rows, ("A",), Format.JSON)
    assert json.loads(capsys.readouterr().out) == rows


def test_control_characters_of_a_name_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "group\n\x1b[2Jfake"
    show([{"GROUP": evil, "PARTS": [evil]}], ("GROUP", "PARTS"), Format.TABLE)
    say(f"deleted {evil}")
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 2
    assert captured.err == "deleted group\\n\\x1b[2Jfake\n"
    assert "\x1b" not in captured.out
    assert one_line("вода — 水") == "вода — 水"


def test_small_words() -> None:
    assert [counted(number, "record") for number in (0, 1, 2)] == ["0 records", "1 record", "2 records"]
    assert [readable(content) for content in (None, b"", b"\xff")] == [None, "", {"base64": "/w=="}]
