"""Points in time, as a user writes them."""

import time

import pytest
import typer

from tailrace.cli.times import parse_any_time, parse_time

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-02", DAY_MS),
        ("1970-01-02T00:00:00.001", DAY_MS + 1),
        ("1970-01-02T02:00+02:00", DAY_MS),
        ("1969-12-31T23:59:59.999", 0),  # -1 would be the end of the log
        ("0001-01-01", 0),
    ],
)
def test_an_iso_time_is_utc_unless_it_says_otherwise(text: str, ms: int) -> None:
    assert parse_time(text, "--to-datetime") == parse_any_time(text, "--to-time") == ms


def test_ms_and_times_before_now_are_times_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.5)
    assert parse_any_time("17", "--to-time") == 17
    assert parse_any_time("now-10m", "--to-time") == 1_700_000_000_500 - 600_000
    assert parse_any_time("now-999999999d", "--to-time") == 0


@pytest.mark.parametrize("text", ["", "yesterday", "now", "now-", "now+1h", "9" * 30, "٣٣", "-1"])
def test_another_text_is_refused_with_its_option(text: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        parse_any_time(text, "--to-time")
    assert refused.value.param_hint == "--to-time"
    assert repr(text) in refused.value.message
