"""Points in time, in a user's notation."""

from datetime import UTC, datetime

import typer

from tailrace.spark.given_options import parse_timestamp_ms


def parse_time(text: str, option: str) -> int:
    """The ms since 1970, at least 0, of an ISO time, which is in UTC unless it names a zone. Raises
    typer.BadParameter."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time; say it as 2026-01-31T12:00", param_hint=option) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    # Negative timestamps have other meanings in ListOffsets: the ends of the log.
    return max(int(time.timestamp() * 1000), 0)


def parse_any_time(text: str, option: str) -> int:
    """The ms since 1970 of an ISO time, or of the other forms that the Spark source takes: ms since 1970, or `now-10m`.
    Raises typer.BadParameter."""
    timestamp = parse_timestamp_ms(text)
    return parse_time(text, option) if timestamp is None else timestamp
