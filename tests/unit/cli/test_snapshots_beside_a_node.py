"""`tailrace snapshots` on the directory of a running node: it reads, and changes no file."""

import json
import time
from pathlib import Path

import pytest

from tailrace.cli.main import main
from tailrace.client.blocking import Admin
from tailrace.testing import Cluster


def output_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    with pytest.raises(SystemExit) as ended:
        main(("snapshots", *words, "-o", "json"))
    assert not ended.value.code
    return [dict(row) for row in json.loads(capsys.readouterr().out)]


def snapshots_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.checkpoint")}


def test_snapshots_are_listed_described_and_verified_while_the_node_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "metadata.log.max.record.bytes.between.snapshots": "2000",
        "metadata.snapshot.min.changed_records.ratio": "0",
    }
    with Cluster(config=settings, directory=tmp_path) as cluster, Admin(cluster.bootstrap_servers) as admin:
        (log,) = tmp_path.rglob("__cluster_metadata-0")
        number = 0
        deadline = time.monotonic() + 60
        while len(output_of(capsys, "list", "--data-dir", str(log))) < 2:
            assert time.monotonic() < deadline, cluster.log_text()
            admin.create_topics({f"topic-{number}": 5})
            number += 1
        before = snapshots_in(log)
        newest = output_of(capsys, "describe", "--data-dir", str(log.parent))[0]
        assert "PartitionRecord" in str(newest["RecordTypes"])
        assert newest["EndOffset"] != 0
        verdicts = output_of(capsys, "verify", "--data-dir", str(log.parent))
        assert [verdict["Valid"] for verdict in verdicts] == [True] * len(verdicts)
        # The node may be about to add a snapshot; the commands have left the earlier snapshots as they were.
        assert before.items() <= snapshots_in(log).items()
        admin.create_topics({"after": 1})
