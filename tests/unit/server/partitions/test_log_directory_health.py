import logging

import pytest

from tailrace.server.partitions.log_directory_health import LogDirectoryHealth, StallCause


class Noted:
    """The notifications to the directory's replicas, in order."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def directory_stalled(self) -> None:
        self.all.append("stalled")

    def directory_recovered(self) -> None:
        self.all.append("recovered")

    def fetch_only_in_sync(self, only: bool, /) -> None:
        self.all.append("in sync" if only else "all")


def test_a_directory_is_stalled_from_the_first_cause_to_the_last(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tailrace.server")
    noted = Noted()
    health = LogDirectoryHealth("/data", replicas=noted, fetching=noted)
    health.set_stalled(StallCause.HUNG, False)
    assert (noted.all, health.is_stalled) == ([], False)
    health.set_stalled(StallCause.FULL, True)
    health.set_stalled(StallCause.HUNG, True)
    health.set_stalled(StallCause.HUNG, True)
    health.set_stalled(StallCause.FULL, False)
    assert (noted.all, health.is_stalled) == (["in sync", "stalled"], True)
    health.set_stalled(StallCause.HUNG, False)
    assert (noted.all, health.is_stalled) == (["in sync", "stalled", "all", "recovered"], False)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in lines] == [
        "event=log-directory-stalled",
        "event=log-directory-stalled",
        "event=log-directory-recovered",
        "event=log-directory-recovered",
    ]
    assert "cause=disk-full stalled=True" in lines[2]
