"""Spark Declarative Pipelines: examples/pipeline is run twice, with real flights, and goes on where it stopped."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

from tailrace.client.blocking import Admin, Consumer, TopicPartition
from tailrace.client.offsets import LATEST
from tailrace.spark.session import BRIEF
from tailrace.testing import Cluster

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.spark, pytest.mark.timeout(1200)]

PROJECT = Path(__file__).parents[2] / "examples" / "pipeline"
LATE_MIN = 60
"""As in the project."""
RUN_S = 500
SETTINGS = {"spark.sql.catalogImplementation": "hive", "spark.ui.enabled": "false", **BRIEF}
CONF = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
Flight = dict[str, Any]


def loader() -> ModuleType:
    spec = importlib.util.spec_from_file_location("load_flights", PROJECT / "load_flights.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Project:
    """A copy of the project, with the cluster's address and places of its own."""

    def __init__(self, directory: Path, servers: str) -> None:
        self.directory = directory
        shutil.copytree(PROJECT, directory)
        spec = directory / "spark-pipeline.yml"
        text = spec.read_text()
        changed = text.replace("127.0.0.1:9092", servers).replace("/tmp/tailrace-flights", str(directory / "storage"))
        assert changed.count(servers) == 1
        assert str(directory) in changed
        spec.write_text(changed)

    def run(self) -> None:
        """Run the pipeline as a user does."""
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [str(Path(sys.executable).with_name("spark-pipelines")), "run"]
        done = subprocess.run(
            [*command, *CONF],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]

    def table(self, name: str) -> list[Flight]:
        """The rows of a table, from its Parquet files."""
        rows: list[Flight] = pq.read_table(self.directory / "spark-warehouse" / name).to_pylist()
        return rows


def check(project: Project, servers: str, flights: list[Flight]) -> None:
    """The tables and the topic have what these flights give, computed here."""
    departures = project.table("departures")
    assert sorted(
        (str(departure["day"]), departure["flight"], departure["carrier"], departure["origin"])
        for departure in departures
    ) == sorted((flight["day"], flight["flight"], flight["carrier"], flight["origin"]) for flight in flights)
    assert len({(departure["partition"], departure["offset"]) for departure in departures}) == len(flights)
    delays = defaultdict(list)
    for flight in flights:
        delays[flight["carrier"], flight["day"]].append(flight["dep_delay"])
    found = {(row["carrier"], str(row["day"])): row for row in project.table("delays")}
    assert found.keys() == delays.keys()
    for group, all_delays in delays.items():
        known = [delay for delay in all_delays if delay is not None]
        assert (found[group]["flights"], found[group]["departed"]) == (len(all_delays), len(known))
        assert found[group]["mean_delay"] == (pytest.approx(fmean(known)) if known else None)
    late = [flight for flight in flights if flight["dep_delay"] is not None and flight["dep_delay"] >= LATE_MIN]
    assert sorted(read_late(servers)) == sorted((flight["carrier"], flight["day"], flight["flight"]) for flight in late)


def read_late(servers: str) -> list[tuple[str, str, str]]:
    """The topic `late` as a read_committed consumer sees it: the whole topic, since nothing is written any more."""
    found = []
    place = TopicPartition("late", 0)
    with Admin(servers) as admin:
        end = admin.list_offsets({place: LATEST})[place].offset
    with Consumer(servers, auto_offset_reset="earliest", isolation="read_committed") as consumer:
        consumer.assign([place])
        while (consumer.position(place) or 0) < end:
            for record in consumer.poll(timeout=1):
                value = json.loads(record.value or b"")
                found.append(((record.key or b"").decode(), value["day"], value["flight"]))
    return found


def test_the_example_goes_on_where_it_stopped(tmp_path: Path) -> None:
    load_flights = loader()
    with Cluster(brokers=1, directory=tmp_path / "cluster") as cluster:
        servers = cluster.bootstrap_servers
        project = Project(tmp_path / "project", servers)
        for days in (("2013-01-01", "2013-01-02"), ("2013-01-03", "2013-01-03")):
            assert load_flights.load(servers, *days) > 500
            project.run()
            check(project, servers, list(load_flights.flights("2013-01-01", days[1])))
