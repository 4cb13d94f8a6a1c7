"""The first part of `make demo`: a leader is killed under load, and every record is counted."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.testing import Cluster

DEMO = Path(__file__).parents[3] / "examples" / "failover_demo.py"


@pytest.fixture
def demo(tmp_path: Path) -> Any:
    """The program, which writes its figures to a directory of the test."""
    spec = importlib.util.spec_from_file_location(DEMO.stem, DEMO)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.FIGURES = tmp_path / "failover.json"
    return module


def _verdict(demo: Any, read: dict[int, bytes]) -> Any:
    """The verdict on three acknowledged records, if this was read."""
    return demo.compared([demo.Acknowledgement(number, number, 0.0) for number in range(3)], read)


def test_an_acknowledged_record_that_is_not_at_its_offset_is_lost(demo: Any) -> None:
    values = [demo.value_of(number) for number in range(3)]
    assert _verdict(demo, dict(enumerate(values))).is_good
    cut = _verdict(demo, {0: values[0], 1: values[1]})
    assert (cut.lost, cut.is_good) == (1, False)
    assert "offset 2" in cut.example
    swapped = _verdict(demo, {0: values[1], 1: values[0], 2: values[2]})
    assert (swapped.lost, swapped.twice) == (2, 0)
    assert not swapped.is_good


def test_a_record_that_is_there_twice_is_counted(demo: Any) -> None:
    values = [demo.value_of(number) for number in (0, 1, 2, 1)]
    repeated = _verdict(demo, dict(enumerate(values)))
    assert (repeated.lost, repeated.twice, repeated.is_good) == (0, 1, False)
    assert not demo.compared([], {}).is_good


def test_a_lost_record_ends_the_demo(demo: Any) -> None:
    verdict = _verdict(demo, {})
    with pytest.raises(SystemExit, match="demo failed: offset 0 was acknowledged"):
        demo.report(demo.Figures(verdict, 0, 1.0, 1.0, 0.25, []))
    assert not demo.FIGURES.exists()


@pytest.mark.crash
@pytest.mark.in_turn
def test_the_demo_kills_the_leader_and_reads_what_was_acknowledged(
    demo: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(brokers=demo.BROKERS, config=demo.SETTINGS) as cluster:
        demo.report(demo.run(cluster, before_s=0.3, after_s=0.3))
        assert all(cluster.is_running(node) for node in cluster.broker_ids)
    output = capsys.readouterr().out
    figures = json.loads(demo.FIGURES.read_text())
    verdict = figures["verdict"]
    assert "kill -9" in output
    assert f"{verdict['acknowledged']:,} acknowledged, {verdict['read']:,} read, 0 lost" in output
    assert sum(figures["columns"]) == verdict["acknowledged"] > 0
    assert verdict["read"] <= verdict["acknowledged"] + figures["refused"]
    assert figures["outage_s"] > 0
