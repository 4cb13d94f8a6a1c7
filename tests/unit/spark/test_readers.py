"""The fetches that tasks of a read share in one process."""

from typing import Any

import pytest

from tailrace.spark import readers
from tailrace.spark.source_options import parse_source_options

BASE = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}


def test_tasks_share_a_fetch_that_tells_their_rack(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def make(servers: str, **settings: Any) -> object:
        made.append(settings)
        return object()

    monkeypatch.setattr(readers, "RangedFetch", make)
    monkeypatch.setattr(readers, "_fetches", {})

    def fetch_of(**options: str) -> object:
        return readers._worker_fetch(parse_source_options({**BASE, **options}, streaming=False))

    near = fetch_of(**{"kafka.client.rack": "a"})
    assert fetch_of(**{"kafka.client.rack": "a"}) is near
    assert fetch_of() is not near
    assert [settings["rack"] for settings in made] == ["a", ""]
    monkeypatch.setenv("RACK", "b")
    assert fetch_of(**{"client.rack.env": "RACK"}) is not near
    assert fetch_of(**{"client.rack.env": "RACK"}) is fetch_of(**{"kafka.client.rack": "b"})
    assert [settings["rack"] for settings in made] == ["a", "", "b"]


def test_an_executor_without_the_variable_of_its_rack_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RACK", raising=False)
    monkeypatch.setattr(readers, "_without_rack", set())
    options = parse_source_options({**BASE, "client.rack.env": "RACK"}, streaming=False)
    assert [readers._rack_here(options) for _ in range(3)] == ["", "", ""]
    assert len([line for line in caplog.messages if "has no RACK" in line and "spark.executorEnv.RACK" in line]) == 1
