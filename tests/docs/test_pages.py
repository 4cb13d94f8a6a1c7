"""The Python blocks of these pages run as they stand, but for the port and for a directory."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from interop.programs import quix
from tailrace import Admin, Producer, TopicPartition
from tailrace.model.errors import KafkaError
from tailrace.spark.java import JavaNotFound
from tailrace.spark.session import local_session
from tailrace.testing import Cluster
from testkit.nodes.group_protocols import GROUP_PROTOCOLS, cluster_of
from testkit.programs.commands import run_command

DOCS = Path(__file__).parents[2] / "docs"
ADDRESS = '"127.0.0.1:9092"'
WITHOUT_ADDRESS = ("guides/testing-spark.md", "guides/testing.md")


def _blocks(page: str, language: str = "python") -> list[str]:
    text = (DOCS / page).read_text()
    assert ADDRESS in text or page in WITHOUT_ADDRESS
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def protocol() -> str:
    """The protocol of the groups."""
    return "consumer"


@pytest.fixture
def cluster(protocol: str) -> Iterator[Cluster]:
    """A node of its own: the pages' topics have names that topics of other tests may have."""
    yield from cluster_of(protocol)


in_both_protocols = pytest.mark.parametrize("protocol", GROUP_PROTOCOLS)


def _protocols(cluster: Cluster, *groups: str) -> set[str]:
    """The protocols of these groups."""
    with Admin(cluster.bootstrap_servers) as admin:
        return {str(group.type) for group in admin.list_groups() if group.group in groups}


@in_both_protocols
def test_python(cluster: Cluster, protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in _blocks("python.md"):
        is_refused = protocol == "classic" and "pattern=" in block
        refusal = pytest.raises(KafkaError, match="a pattern needs") if is_refused else nullcontext()
        with refusal:
            exec(block.replace(ADDRESS, f'"{cluster.bootstrap_servers}"'), names)
    names["test_greeting"](cluster)
    output = capsys.readouterr().out
    assert "b'alice' b'tea'" in output
    assert "UNKNOWN_TOPIC_OR_PARTITION" in output
    assert "topic='orders'" in output.splitlines()[-1]  # the last block, for asyncio
    assert names["rows"] == len(names["records"]) > 0
    assert _protocols(cluster, "billing", "shipping", "packing") == {protocol}


def test_security(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands and settings of the part about TLS, from the certificates to a record."""
    monkeypatch.chdir(tmp_path)
    shell, settings, program = (
        next(block for block in _blocks("security.md", language) if mark in block)
        for language, mark in (("sh", "certs init"), ("properties", "ssl.keystore"), ("python", "client-alice.pem"))
    )
    made = run_command(tuple(shell.splitlines()[1].split()[1:]), capsys)
    assert "node-c.example.pem" in made.err
    given = dict(line.split("=", 1) for line in settings.splitlines())
    given["listener.security.protocol.map"] = "PLAINTEXT:SSL,CONTROLLER:SSL"
    del given["listeners"]
    names = {name: str(tmp_path / value) if value.startswith("certs/") else value for name, value in given.items()}
    with Cluster(brokers=3, config=names) as nodes:
        values: dict[str, Any] = {}
        exec(program.replace(ADDRESS, f'"{nodes.bootstrap_servers}"'), values)
    assert values["settings"]["ssl.keystore.location"] == "certs/client-alice.pem"


@in_both_protocols
def test_transactions(cluster: Cluster, protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in _blocks("guides/transactions.md"):
        exec(block.replace(ADDRESS, f'"{cluster.bootstrap_servers}"'), names)
    assert capsys.readouterr().out.splitlines()[-1] == "b'TEA 0' b'TEA 99'"
    with Admin(cluster.bootstrap_servers) as admin:
        assert {each.offset for each in admin.group_offsets("billing").values()} == {100}
    assert _protocols(cluster, "billing", "readers") == {protocol}


@in_both_protocols
def test_key_ranges(cluster: Cluster, protocol: str) -> None:
    """A block reads until `ship`, which the page leaves to the reader, ends it."""
    plain, view, handler, slots = _blocks("guides/key-ranges.md")
    partitions = [TopicPartition("orders", 0), *(TopicPartition("orders.shared-16", part) for part in range(16))]
    with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers) as producer:
        admin.create_topics({"orders": 1})
        for number in range(20):
            producer.send("orders", b"%d" % (number + 1), key=b"key-%d" % (number % 5))
    shipped: list[int] = []

    def ship(value: bytes | int) -> bool:
        shipped.append(int(value))
        if len(shipped) == 20:
            raise SystemExit
        return True

    names: dict[str, Any] = {"ship": ship}
    for block in (plain, view, handler, slots):
        shipped.clear()
        with Admin(cluster.bootstrap_servers) as admin:
            admin.commit_offsets("shipping", dict.fromkeys(partitions, 0))
        with pytest.raises(SystemExit):
            exec(block.replace(ADDRESS, f'"{cluster.bootstrap_servers}"'), names)
        assert sorted(shipped) == list(range(1, 21))
    assert _protocols(cluster, "shipping", "packing") == {protocol}


def test_errors(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = _blocks("reference/errors.md")
    exec(block.replace(ADDRESS, f'"{cluster.bootstrap_servers}"'), {})
    assert capsys.readouterr().out.startswith("UNKNOWN_TOPIC_OR_PARTITION 3 True ")


@in_both_protocols
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for topic in ("orders", "orders.eu"):
            producer.send(topic, b"tea", key=b"alice")
    try:
        local_session("pages", brief=True)  # the page's call finds this session, which starts faster
    except JavaNotFound as fault:
        pytest.skip(str(fault))
    names: dict[str, Any] = {}
    try:
        for block in _blocks("spark.md"):
            here = f'"{tmp_path / "checkpoint"}"'
            exec(block.replace(ADDRESS, f'"{cluster.bootstrap_servers}"').replace('"checkpoint"', here), names)
        shown = capsys.readouterr().out
        assert re.search(r"\|\s*tea\|\s*0\|", shown)
        assert "value: its 3 bytes are cut short, or of another schema" in shown  # tea is no order in Avro
        written = names["spark"].read.format("tailrace").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        rows = written.option("subscribe", "shouted").load().selectExpr("CAST(value AS STRING)").collect()
        assert [row.value for row in rows] == ["TEA"]
        with Admin(cluster.bootstrap_servers) as admin:
            deadline = time.monotonic() + 60
            committed: dict[str, int] = {}
            while (
                committed != {"orders-0": 1} and time.monotonic() < deadline
            ):  # listeners are called a moment after a batch
                committed = {
                    str(partition): offset.offset for partition, offset in admin.group_offsets("my-query").items()
                }
                time.sleep(0.1)
        assert committed == {"orders-0": 1}
        monkeypatch.setenv("TAILRACE_BOOTSTRAP", cluster.bootstrap_servers)
        monkeypatch.chdir(tmp_path)
        _commands_on_the_checkpoint(capsys)
    finally:
        if "progress" in names:
            names["spark"].streams.removeListener(names["progress"])


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_tests_of_spark(cluster: Cluster, tmp_path: Path) -> None:
    try:
        spark = local_session("pages", brief=True)
    except JavaNotFound as fault:
        pytest.skip(str(fault))
    names: dict[str, Any] = {}
    for block in _blocks("guides/testing-spark.md"):
        exec(block, names)
    names["test_drinks_are_shouted"](spark, cluster, tmp_path)


_QUIX = "test_quix.py"
_IMPORTED = ("billing.py", "conftest.py", "test_billing.py")
"""The files of the service that reads its address when it is imported."""
_OF_THE_PROJECT = "tailrace_cluster_of_the_project"


def _files_of_tests() -> dict[str, str]:
    """The blocks of the guide, each a file of a project's tests with the name of its first line."""
    files = {}
    for number, block in enumerate(_blocks("guides/testing.md")):
        named = re.match(r"# (\w+\.py)\n", block)
        name = _OF_THE_PROJECT if 'Cluster(brokers=3, config={"default' in block else f"test_block_{number}.py"
        files[named[1] if named else name] = block
    return files


def test_tests(tmp_path: Path) -> None:
    expected = 0
    for name, block in _files_of_tests().items():
        if name not in (_QUIX, _OF_THE_PROJECT, *_IMPORTED):
            (tmp_path / name).write_text(block)
            expected += len(re.findall(r"^ *def test_", block, re.MULTILINE))
    output = _test_output(tmp_path)
    assert f"{expected} passed" in output, output
    assert expected > 11


def test_tests_of_a_service_that_reads_its_address_when_it_is_imported(tmp_path: Path) -> None:
    files = _files_of_tests()
    for name in _IMPORTED:
        (tmp_path / name).write_text(files[name])
    assert "1 passed" in (output := _test_output(tmp_path)), output


def test_tests_of_a_service_of_faststream_on_confluent_kafka(tmp_path: Path) -> None:
    files = _files_of_tests()
    for name in ("shipping.py", "test_shipping.py"):
        assert "faststream.kafka" in files[name]
        (tmp_path / name).write_text(files[name].replace("faststream.kafka", "faststream.confluent"))
    assert "2 passed" in (output := _test_output(tmp_path)), output


def test_tests_on_a_cluster_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(_files_of_tests()[_OF_THE_PROJECT])
    (tmp_path / "test_three.py").write_text(
        "def test_three(tailrace_cluster, tailrace_topic):\n    assert tailrace_cluster.broker_ids == [1, 2, 3]\n"
    )
    assert "1 passed" in (output := _test_output(tmp_path)), output


@pytest.mark.timeout(1_000)
def test_tests_of_quix_streams(tmp_path: Path) -> None:
    """Quix Streams has an environment of its own: its clients have versions of their own."""
    if why := quix.absent():
        pytest.skip(why)
    (tmp_path / _QUIX).write_text(_files_of_tests()[_QUIX])
    assert "1 passed" in (output := _test_output(tmp_path, quix.HOME)), output


def _test_output(directory: Path, *packages: Path) -> str:
    """The output of pytest in this directory, with the packages before those of this environment."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "--strict-markers"]
    paths = os.pathsep.join([*map(str, packages), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*command, str(directory)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    return done.stdout + done.stderr


def _commands_on_the_checkpoint(capture: pytest.CaptureFixture[str]) -> None:
    (block,) = _blocks("spark.md", "sh")
    shown, renamed, moved = (run_command(tuple(line.split()[1:]), capture) for line in block.splitlines())
    assert (shown.code, renamed.code, moved.code) == (0, 0, 0)
    assert shown.out.splitlines()[1].endswith("resumes")
    assert "orders.eu" in renamed.out
    assert "nothing has been changed" in renamed.err
    assert "batch 0 ends there now" in moved.err
    (offsets,) = Path("checkpoint", "offsets").glob("[0-9]*")
    assert json.loads(offsets.read_text().splitlines()[2])["orders"] == {"0": 0}
