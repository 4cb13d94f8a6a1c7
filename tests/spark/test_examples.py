"""Programs of examples/, on real flights: their results equal the same computed in Python, over restarts."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from tailrace.client.blocking import Admin, NewTopic, Producer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
REST = timedelta(hours=12)
Flight = dict[str, Any]


def program(path: str) -> ModuleType:
    """A program of the examples, as a module."""
    place = EXAMPLES / path
    spec = importlib.util.spec_from_file_location(place.stem, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flights(days: int) -> list[Flight]:
    """The flights of the first days of the year, in the order of their scheduled departures."""
    found = program("pipeline/load_flights.py").flights("2013-01-01", f"2013-01-{days:02}")
    return sorted(found, key=lambda flight: flight["time_hour"])


@pytest.fixture
def compacted(admin: Admin, topic: str) -> str:
    name = f"{topic}-aircraft"
    admin.create_topics([NewTopic(name=name, partitions=2, configs={"cleanup.policy": "compact"})])
    return name


def places_of_aircraft(flights: list[Flight]) -> Iterator[tuple[str, str | None]]:
    """The airport that each flight goes to, by its aircraft; some aircraft are withdrawn now and then."""
    for number, flight in enumerate(flights):
        if flight["tailnum"] == "NA":
            continue
        yield flight["tailnum"], flight["dest"]
        if number % 7 == 0:
            yield flight["tailnum"], None


def test_change_capture(spark: SparkSession, bootstrap: str, compacted: str, tmp_path: Path) -> None:
    """A run is a few batches. A batch that Spark repeats, since the checkpoint lacks its end, changes nothing."""
    module: Any = program("change_capture.py")
    module.MOST_RECORDS = 300
    table, checkpoint = str(tmp_path / "table"), tmp_path / "checkpoint"
    changes = places_of_aircraft(flights(2))
    expected: dict[str, str] = {}
    for size in (900, 500):
        with Producer(bootstrap) as producer:
            for key, value in islice(changes, size):
                producer.send(compacted, None if value is None else value.encode(), key=key.encode())
                if value is None:
                    del expected[key]
                else:
                    expected[key] = value
        module.capture(spark, bootstrap, compacted, table, str(checkpoint)).awaitTermination()
        assert rows_of(table) == expected
    version = DeltaTable(table).version()
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (checkpoint / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    module.capture(spark, bootstrap, compacted, table, str(checkpoint)).awaitTermination()
    assert (DeltaTable(table).version(), rows_of(table)) == (version, expected)


def rows_of(table: str) -> dict[str, str]:
    columns = DeltaTable(table).to_pyarrow_table().to_pydict()
    assert len(set(columns["key"])) == len(columns["key"])
    return dict(zip(columns["key"], columns["value"], strict=True))


def duties(flights: list[Flight]) -> list[tuple[str, datetime, datetime, int]]:
    """The duties that have ended."""
    ended, still_open = [], dict[str, tuple[datetime, datetime, int]]()
    for flight in flights:
        name, at = flight["tailnum"], datetime.fromisoformat(flight["time_hour"])
        if name == "NA":
            continue
        began, last, count = still_open.get(name, (at, at, 0))
        if at - last >= REST:
            ended.append((name, began, last, count))
            began, count = at, 0
        still_open[name] = began, at, count + 1
    return sorted(ended)


def test_sessions(
    spark: SparkSession, bootstrap: str, admin: Admin, load: Callable[..., DataFrame], tmp_path: Path
) -> None:
    """The state of each aircraft goes on over a restart in the middle of the flights."""
    module, all_flights = program("sessions.py"), flights(3)
    admin.create_topics({"flights": 3, "duties": 2})
    half = len(all_flights) // 2
    for part in (all_flights[:half], all_flights[half:]):
        with Producer(bootstrap) as producer:
            for flight in part:
                producer.send("flights", json.dumps(flight).encode(), key=flight["tailnum"].encode())
        module.find_duties(spark, bootstrap, str(tmp_path / "checkpoint")).awaitTermination()
    found = load(subscribe="duties", **{"kafka.isolation.level": "read_committed"}).collect()
    values = [(row.key.decode(), json.loads(row.value)) for row in found]
    assert sorted(
        (name, *(datetime.fromtimestamp(duty[end], UTC) for end in ("began_s", "ended_s")), duty["flights"])
        for name, duty in values
    ) == duties(all_flights)


def test_processes_of_spark_write_their_errors_to_a_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo starts Spark so: a process of Spark that ends with a traceback shows nothing on the terminal."""
    monkeypatch.syspath_prepend(EXAMPLES)
    log = tmp_path / "spark.log"
    with program("flights_demo.py").stderr_in(log):
        subprocess.run([sys.executable, "-c", "raise ValueError('late')"], check=False)
    subprocess.run([sys.executable, "-c", "raise ValueError('behind')"], check=False)
    shown = capfd.readouterr().err
    assert "behind" in shown
    assert "late" not in shown
    assert log.read_text().endswith("ValueError: late\n")


def test_the_chart_has_the_writes_around_the_kill_if_they_were_measured(tmp_path: Path) -> None:
    chart: Any = program("demo_chart.py")
    delays = {"UA": [(date(2013, 1, 1) + timedelta(days), float(days)) for days in range(30)]}
    measured, alone, both = tmp_path / "failover.json", tmp_path / "alone.png", tmp_path / "both.png"
    chart.draw(delays, measured, alone)
    verdict = {"acknowledged": 40, "read": 40, "lost": 0}
    figures = {"verdict": verdict, "killed_at": 0.5, "outage_s": 0.3, "column_s": 0.25, "columns": [10, 10, 0, 20]}
    measured.write_text(json.dumps(figures))
    chart.draw(delays, measured, both)
    assert image_width(both) > image_width(alone) > 0


def image_width(chart: Path) -> int:
    return int.from_bytes(chart.read_bytes()[16:20], "big")
