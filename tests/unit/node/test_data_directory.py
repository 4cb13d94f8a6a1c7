"""A data directory belongs to one node, and to one process at a time."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from tailrace.model.errors import KafkaError
from tailrace.model.ids import format_topic_id
from tailrace.model.proofs import may_speak_for, needs_secret
from tailrace.node.data_directory import DirectoryLock, claim_identity
from tailrace.storage import OsFiles


def test_two_nodes_never_share_a_directory(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path / "data"), pytest.raises(KafkaError, match="is in use by another node"):
        DirectoryLock(tmp_path / "data")


def test_a_file_system_without_locks_is_not_taken_for_another_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(KafkaError, match="No locks available; choose a --data-dir whose file system has locks"):
        DirectoryLock(tmp_path)


def test_a_directory_is_free_again_when_its_node_has_stopped(tmp_path: Path) -> None:
    DirectoryLock(tmp_path).release()
    DirectoryLock(tmp_path).release()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(KafkaError, match="cannot use .*file"):
        DirectoryLock(tmp_path / "file")


def test_directories_above_are_made_too(tmp_path: Path) -> None:
    DirectoryLock(tmp_path / "one" / "two" / "data").release()
    assert (tmp_path / "one" / "two" / "data").is_dir()


def test_a_new_directory_gets_an_id_and_keeps_it_and_belongs_to_no_cluster_yet(tmp_path: Path) -> None:
    first = claim_identity(OsFiles(), str(tmp_path), node_id=4)
    assert first.cluster_id is None
    assert first.directory_id is not None
    assert claim_identity(OsFiles(), str(tmp_path), node_id=4) == first
    assert "version=1" in (tmp_path / "meta.properties").read_text().splitlines()


def test_a_new_directory_has_the_secret_of_its_id_and_shows_it_nowhere(tmp_path: Path) -> None:
    made = claim_identity(OsFiles(), str(tmp_path), node_id=4)
    assert made.directory_id is not None
    assert needs_secret(made.directory_id)
    assert may_speak_for(made.directory_id, made.directory_secret)
    assert format_topic_id(made.directory_secret) not in repr(made)


def test_a_directory_whose_secret_is_gone_is_named(tmp_path: Path) -> None:
    claim_identity(OsFiles(), str(tmp_path), node_id=4)
    path = tmp_path / "meta.properties"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("directory.secret")]
    path.write_text("\n".join(lines))
    with pytest.raises(KafkaError, match=r"its directory.secret is not that of its directory.id; restore it"):
        claim_identity(OsFiles(), str(tmp_path), node_id=4)


@pytest.mark.parametrize("leftover", [None, "quorum-state"])
def test_a_directory_of_a_cluster_whose_metadata_log_is_gone_is_another_directory(
    tmp_path: Path, leftover: str | None
) -> None:
    identity = f"cluster.id=AAAAAAAAAAAAAAAAAAAAAQ\nnode.id=4\ndirectory.id={'B' * 21}A\nversion=1\n"
    (tmp_path / "meta.properties").write_text(identity)
    log = tmp_path / "__cluster_metadata-0"
    log.mkdir()
    (log / f"{0:020}.log").touch()
    before = claim_identity(OsFiles(), str(tmp_path), node_id=4)
    assert (tmp_path / "meta.properties").read_text() == identity
    (log / f"{0:020}.log").unlink()
    if leftover is None:
        log.rmdir()
    else:
        (log / leftover).touch()
    after = claim_identity(OsFiles(), str(tmp_path), node_id=4)
    assert after.cluster_id == before.cluster_id
    assert after.directory_id not in (None, before.directory_id)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "it has no node.id; restore it from a copy"),
        ("cluster.id=AAAAAAAAAAAAAAAAAAAAAQ\n", "it has no node.id; restore it from a copy"),
        ("version=2\ncluster.id=AAAAAAAAAAAAAAAAAAAAAQ\nnode.id=4\n", "version 2 is not known here"),
        ("cluster.id=AAAAAAAAAAAAAAAAAAAAAQ\nnode.id=x\n", "cannot be used"),
    ],
)
def test_an_identity_that_cannot_be_read_is_never_replaced(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "meta.properties").write_text(content)
    with pytest.raises(KafkaError, match=message):
        claim_identity(OsFiles(), str(tmp_path), node_id=4)
    assert (tmp_path / "meta.properties").read_text() == content


def test_data_without_an_identity_are_not_given_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "__cluster_metadata-0").mkdir()
    with pytest.raises(KafkaError, match=r"has a node's data but no meta\.properties"):
        claim_identity(OsFiles(), str(tmp_path), node_id=4)


def test_another_nodes_directory_is_refused_with_the_way_out(tmp_path: Path) -> None:
    claim_identity(OsFiles(), str(tmp_path), node_id=4)
    with pytest.raises(KafkaError, match=r"belongs to node 4, not to node 5: set node\.id=4"):
        claim_identity(OsFiles(), str(tmp_path), node_id=5)


def test_a_directory_that_kafka_formatted_keeps_its_cluster(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("#\nversion=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAQ\nnode.id=1\n")
    identity = claim_identity(OsFiles(), str(tmp_path), node_id=1)
    assert identity.cluster_id == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert identity.directory_id is not None
