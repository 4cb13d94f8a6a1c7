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
