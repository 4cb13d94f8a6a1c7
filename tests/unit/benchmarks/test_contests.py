"""A peer that is absent is named with the reason."""

from pathlib import Path

import pytest

from benchmarks import contests
from benchmarks.contests import CONNECTOR, connector_jars
from benchmarks.results.rounds import Rounds


@pytest.mark.parametrize(("why", "is_absent"), [(None, False), ("mvn is not installed: apt-get install maven", True)])
def test_the_connector_is_its_jars_or_named_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str | None, is_absent: bool
) -> None:
    (tmp_path / "kafka-clients.jar").touch()
    monkeypatch.setattr(contests, "CONNECTOR_JARS", tmp_path)
    monkeypatch.setattr(contests, "connector_absent", lambda: why)
    rounds = Rounds(1, lambda *_, **__: None, warm_ups=0)
    assert connector_jars(rounds) == ([] if is_absent else [tmp_path / "kafka-clients.jar"])
    assert rounds.absent == ([f"{CONNECTOR} is absent: {why}"] if is_absent else [])
