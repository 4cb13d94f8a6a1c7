"""`tailrace doctor` as a command: its output and its exit code."""

import json
import socket

import pytest

from tailrace.cli.main import main
from tailrace.testing import Cluster


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(("doctor", *words))
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().out


def test_the_environment_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys)
    assert code == 0
    assert {"tailrace", "python", "kernel", "uvloop", "java", "open"} <= {line.split()[0] for line in out.splitlines()}
    code, out = run(capsys, "-o", "json")
    rows = {row["CHECK"]: row for row in json.loads(out)}
    assert rows["kernel"]["VALUE"] in ("C", "python")
    assert rows["python"]["VERDICT"] == "ok"


def test_a_node_that_can_be_reached_is_code_0(tailrace_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "connect", tailrace_cluster.bootstrap_servers)
    assert code == 0
    assert "broker 1 is where it says" in out
    code, out = run(capsys, "connect", tailrace_cluster.bootstrap_servers, "-o", "json")
    assert code == 0
    assert {row["verdict"] for row in json.loads(out)} == {"ok"}


def test_an_unreachable_node_is_code_1_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # so that no other program takes it; and none listens there
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
