"""`tailrace snapshots`: the snapshots of a data directory, and the reports of damage. No node runs here."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.cli.main import main
from tailrace.metadata.records.cluster import FeatureLevelRecord
from tailrace.metadata.records.kinds import encode_record
from tailrace.metadata.records.topics import TopicRecord
from tailrace.model.ids import LeaderEpoch
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.storage import OsFiles
from tailrace.storage.snapshots.format import SnapshotHeader
from tailrace.storage.snapshots.store import SnapshotStore
from tailrace.storage.snapshots.writer import Publication
from testkit.programs.commands import CommandResult, run_command

GOLDEN = Path(__file__).parents[2] / "golden" / "log_directory"
NAMES = ["00000000000000000005-0000000001", "00000000000000000120-0000000003"]


Snapshots = Callable[..., CommandResult]


@pytest.fixture
def snapshots(capsys: pytest.CaptureFixture[str]) -> Snapshots:
    def call(*words: str | Path) -> CommandResult:
        return run_command(("snapshots", *map(str, words)), capsys)

    return call


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory with two snapshots."""
    log = tmp_path / "__cluster_metadata-0"
    log.mkdir()
    store = SnapshotStore.open(str(log), files=OsFiles())
    for end_offset, epoch in ((5, 1), (120, 3)):
        writer = store.begin_writing(OffsetAndEpoch(end_offset, LeaderEpoch(epoch)), SnapshotHeader(1_700_000_000_000))
        writer.append([encode_record(FeatureLevelRecord(name="metadata.version", feature_level=26))])
        writer.append(
            encode_record(TopicRecord(name=f"t{number}", topic_id=bytes([number]) * 16)) for number in range(epoch)
        )
        writer.append([b"\0what"] if epoch == 3 else [])
        writer.seal()
        publication = Publication(writer.part)
        publication.carry_out()
        store.finish(publication)
    store.close()
    (log / "00000000000000000007-0000000001.checkpoint.part").write_bytes(b"half")
    return tmp_path


def damage(directory: Path, name: str, position: int = 100) -> Path:
    path = directory / "__cluster_metadata-0" / f"{name}.checkpoint"
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    return path


def test_whole_snapshots_are_listed_in_the_order_of_their_offsets(snapshots: Snapshots, directory: Path) -> None:
    rows = json.loads(snapshots("list", "--data-dir", directory, "-o", "json").out)
    assert [row["Snapshot"] for row in rows] == NAMES
    assert rows[1] == {
        "Snapshot": NAMES[1],
        "EndOffset": 120,
        "Epoch": 3,
        "SizeBytes": (directory / "__cluster_metadata-0" / f"{NAMES[1]}.checkpoint").stat().st_size,
        "LastContainedLogTimestamp": 1_700_000_000_000,
    }
    table = snapshots("list", "--data-dir", directory / "__cluster_metadata-0")
    assert [line.split()[0] for line in table.out.splitlines()] == ["Snapshot", *NAMES]


def test_the_newest_snapshot_is_described_unless_one_is_named(snapshots: Snapshots, directory: Path) -> None:
    (newest,) = json.loads(snapshots("describe", "--data-dir", directory, "-o", "json").out)
    assert newest["Snapshot"] == NAMES[1]
    assert newest["Records"] == 5
    assert newest["RecordTypes"] == {"FeatureLevelRecord": 1, "TopicRecord": 3, "unknown": 1}
    (named,) = json.loads(snapshots("describe", "--data-dir", directory, NAMES[0], "-o", "json").out)
    assert named["RecordTypes"] == {"FeatureLevelRecord": 1, "TopicRecord": 1}


def test_voters_are_described(snapshots: Snapshots) -> None:
    (described,) = json.loads(snapshots("describe", "--data-dir", GOLDEN, "-o", "json").out)
    assert (described["KRaftVersion"], described["Voters"]) == (1, ["1-AAECAwQFBgcICQoLDA0ODw"])


def test_undamaged_snapshots_are_valid(snapshots: Snapshots, directory: Path) -> None:
    done = snapshots("verify", "--data-dir", directory, "-o", "json")
    assert (done.code, done.err) == (0, "")
    assert [(row["Snapshot"], row["Valid"], row["Fault"]) for row in json.loads(done.out)] == [
        (name, True, None) for name in NAMES
    ]


def test_a_damaged_snapshot_is_named_with_its_place(snapshots: Snapshots, directory: Path) -> None:
    path = damage(directory, NAMES[0])
    done = snapshots("verify", "--data-dir", directory, "-o", "json")
    assert done.code == 1
    assert f"1 snapshot damaged: {NAMES[0]}" in done.err
    damaged, right = json.loads(done.out)
    assert (damaged["Valid"], right["Valid"]) == (False, True)
    assert str(path) in damaged["Fault"]
    assert snapshots("verify", "--data-dir", directory, NAMES[1]).code == 0
    assert snapshots("describe", "--data-dir", directory, NAMES[0]).code == 1
    assert snapshots("dump", "--data-dir", directory, NAMES[0]).code == 1


def test_a_snapshot_with_a_damaged_head_is_still_listed(snapshots: Snapshots, directory: Path) -> None:
    damage(directory, NAMES[0], 40)
    done = snapshots("list", "--data-dir", directory, "-o", "json")
    assert [row["LastContainedLogTimestamp"] for row in json.loads(done.out)] == [None, 1_700_000_000_000]
    assert f"{NAMES[0]} is damaged" in done.err


def test_records_are_dumped_as_dump_log_does(
    snapshots: Snapshots, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumped = snapshots("dump", "--data-dir", directory, f"{NAMES[0]}.checkpoint")
    assert dumped.code == 0
    with pytest.raises(SystemExit):
        main(
            (
                "dump-log",
                "--cluster-metadata-decoder",
                str(directory / "__cluster_metadata-0" / f"{NAMES[0]}.checkpoint"),
            )
        )
    assert capsys.readouterr().out == dumped.out
    assert '"name":"t0"' in dumped.out
    lines = snapshots("dump", "--data-dir", directory, NAMES[0], "-o", "json").out.splitlines()
    assert json.loads(lines[1])["SnapshotHeader"]["lastContainedLogTimestamp"] == 1_700_000_000_000


def test_a_missing_snapshot_or_directory_is_named(snapshots: Snapshots, directory: Path, tmp_path: Path) -> None:
    unknown = snapshots("describe", "--data-dir", directory, "00000000000000000009-0000000001")
    assert unknown.code == 1
    assert NAMES[0] in unknown.err
    absent = snapshots("list", "--data-dir", tmp_path / "absent")
    assert (absent.code, "is no directory" in absent.err) == (1, True)
    empty = tmp_path / "empty"
    empty.mkdir()
    advice = f"{empty} has no __cluster_metadata-0: name a node's data directory (its log.dirs)"
    assert snapshots("list", "--data-dir", empty) == (1, "", f"tailrace: {advice}\n")
    (empty / "data" / "__cluster_metadata-0").mkdir(parents=True)
    assert snapshots("list", "--data-dir", empty) == (1, "", f"tailrace: {advice}, such as {empty / 'data'}\n")
    for new in (empty / "data", empty / "data" / "__cluster_metadata-0"):
        assert snapshots("list", "--data-dir", new) == (0, "", "there are no snapshots yet\n")
        assert snapshots("list", "--data-dir", new, "-o", "json") == (0, "[]\n", "")
        assert snapshots("describe", "--data-dir", new).code == 1
    assert snapshots("list").code == 2
