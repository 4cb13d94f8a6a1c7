"""The node's own log: events become JSON with their keys, and nothing of a stranger's becomes a line of its own."""

import json
import logging
import sys

from hypothesis import given
from hypothesis import strategies as st

from tailrace.node.log_format import JsonFormatter, TextFormatter


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("tailrace.net", logging.WARNING, __file__, 1, message, arguments, None)


def test_the_keys_of_an_event_are_those_of_the_json() -> None:
    line = json.loads(
        JsonFormatter().format(record("event=connection-closed peer=%s reason=%r count=%d", "::1", "it's late", 3))
    )
    assert line["level"] == "warning"
    assert line["logger"] == "tailrace.net"
    assert line["time"].endswith("Z")
    assert (line["event"], line["peer"], line["reason"], line["count"]) == (
        "connection-closed",
        "::1",
        "it's late",
        "3",
    )


def test_a_value_runs_to_the_next_key() -> None:
    line = json.loads(JsonFormatter().format(record("event=failed fault=no space left partition=orders-3")))
    assert line["fault"] == "no space left"
    assert line["partition"] == "orders-3"


def test_a_message_that_is_no_event_is_kept_whole() -> None:
    assert json.loads(JsonFormatter().format(record("hello there")))["message"] == "hello there"


def test_a_stranger_cannot_name_the_client() -> None:
    line = json.loads(JsonFormatter().format(record("event=x reason=%r level=critical", "a level=info event=y")))
    assert line["level"] == "warning"
    assert line["event"] == "x"
    assert line["reason"] == "a level=info event=y"


def test_a_traceback_is_one_field() -> None:
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError:
        failed = record("event=failed")
        failed.exc_info = sys.exc_info()
    line = json.loads(JsonFormatter().format(failed))
    assert "ZeroDivisionError: by zero" in line["traceback"]


@given(st.text())
def test_whatever_is_logged_is_one_line(text: str) -> None:
    json_line = JsonFormatter().format(record("event=x text=%s", text))
    assert "\n" not in json_line
    assert json.loads(json_line)["event"] == "x"
    assert "\n" not in TextFormatter("%(levelname)s %(message)s").format(record("event=x text=%s", text))
