"""The identity that the commands for a stopped node use."""

from pathlib import Path

import pytest

from tailrace.cli.files.offline_quorum import controller_of, opened_quorum
from tailrace.model.errors import KafkaError
from tailrace.model.ids import TopicId
from tailrace.storage import OsFiles
from tailrace.storage.checkpoints import MetaProperties, write_meta_properties


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The settings of node 2, but for its number."""
    data = tmp_path / "data"
    data.mkdir()
    identity = MetaProperties(cluster_id="a-cluster", node_id=2, directory_id=TopicId(b"d" * 16))
    write_meta_properties(OsFiles(), str(data), identity)
    file = tmp_path / "server.properties"
    file.write_text(
        f"log.dirs={data}\nlisteners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n"
        "controller.listener.names=CONTROLLER\n"
    )
    return file


def test_a_directory_is_not_taken_for_another_nodes(file: Path) -> None:
    with pytest.raises(KafkaError, match="belongs to node 2, not to node 1"):
        controller_of(file)


def test_settings_of_the_environment_count_as_for_serve(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_NODE_ID", "2")
    assert controller_of(file).key.id == 2


def test_a_command_that_does_not_listen_permits_exposed_listeners(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node was started with --insecure, which neither the file nor this command has."""
    monkeypatch.setenv("TAILRACE_NODE_ID", "2")
    file.write_text(file.read_text().replace("127.0.0.1", "192.0.2.2") + "metrics.listener=192.0.2.2:9094\n")
    assert [endpoint.host for endpoint in controller_of(file).endpoints] == ["192.0.2.2"]
    with opened_quorum(file) as quorum:
        assert quorum.controller.key.id == 2


def test_a_listener_with_a_wildcard_is_still_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quorum would get this address."""
    monkeypatch.setenv("TAILRACE_NODE_ID", "2")
    file.write_text(file.read_text().replace("127.0.0.1", "0.0.0.0"))
    with pytest.raises(KafkaError, match="clients cannot connect to a wildcard"):
        controller_of(file)
