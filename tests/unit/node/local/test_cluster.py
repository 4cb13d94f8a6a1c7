"""The settings of the nodes of a cluster on one machine, and how they are kept."""

import errno
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.node.local.cluster import ClusterWish, LocalNode, open_cluster
from tailrace.node.local.reserved_ports import ReservedPorts
from tailrace.node.settings.config import NodeConfig, load_config
from tailrace.node.settings.listeners import ListenerAddress

ANY_PORT = ListenerAddress(name="PLAINTEXT", host="127.0.0.1", port=0)


def wished(
    *,
    brokers: int | None = None,
    racks: Sequence[str] | None = None,
    controllers: int | None = None,
    listen: ListenerAddress | None = None,
    settings: Mapping[str, str] = {},
) -> ClusterWish:
    """A wish for these things only, as from a command line with these options."""
    return ClusterWish(brokers=brokers, racks=racks, controllers=controllers, listen=listen, settings=settings)


def loaded(node: LocalNode) -> NodeConfig:
    """The settings in the node's file."""
    return load_config(file=node.config_file, environment={}, flags={})


def opened(directory: Path, wish: ClusterWish) -> list[LocalNode]:
    with ReservedPorts() as ports:
        return open_cluster(directory, wish, ports)


def first_of_free_ports(count: int) -> int:
    """The first of so many free ports in a row, below the ports that systems assign to a bind to port 0."""
    for first in range(20_000, 30_000, count):
        try:
            with ReservedPorts() as ports:
                for port in range(first, first + count):
                    ports.reserve("127.0.0.1", port)
        except OSError:
            continue
        return first
    raise AssertionError(f"no {count} free ports in a row")


def ran(nodes: list[LocalNode]) -> None:
    """Leave the files behind that a start would."""
    for node in nodes:
        node.data_directory.mkdir()


@pytest.mark.parametrize(
    ("brokers", "controllers", "voters"),
    [(1, 0, [1]), (2, 0, [1]), (3, 0, [1, 2, 3]), (4, 0, [1, 2, 3]), (7, 0, [1, 2, 3, 4, 5]), (2, 3, [3, 4, 5])],
)
def test_an_odd_number_of_nodes_are_controllers(
    tmp_path: Path, brokers: int, controllers: int, voters: list[int]
) -> None:
    nodes = opened(tmp_path, wished(brokers=brokers, controllers=controllers, listen=ANY_PORT))
    assert [node.node_id for node in nodes if node.is_controller] == voters
    assert [node.node_id for node in nodes if node.is_broker] == list(range(1, brokers + 1))
    if len(nodes) > 1:
        founders = [NodeConfig(node.settings).quorum.founders for node in nodes]
        assert all(list(each) == voters and each == founders[0] for each in founders)
        for node in nodes:
            own = founders[0].get(node.node_id)
            assert [each.port for each in NodeConfig(node.settings).controller_listeners] == ([own.port] if own else [])


def test_ports_follow_the_first_one(tmp_path: Path) -> None:
    first = first_of_free_ports(6)
    nodes = opened(tmp_path, wished(listen=ListenerAddress(name="PLAINTEXT", host="127.0.0.1", port=first)))
    assert [node.address for node in nodes] == [f"127.0.0.1:{first + number}" for number in range(3)]
    ports_of_controllers = [
        listener.port for node in nodes for listener in NodeConfig(node.settings).controller_listeners
    ]
    assert ports_of_controllers == [first + number for number in (3, 4, 5)]


def test_racks_go_round(tmp_path: Path) -> None:
    nodes = opened(tmp_path, wished(brokers=4, controllers=1, racks=["a", "b", "c"], listen=ANY_PORT))
    assert [NodeConfig(node.settings).rack for node in nodes] == ["a", "b", "c", "a", None]


def test_a_nodes_file_has_all_its_settings(tmp_path: Path) -> None:
    wish = wished(racks=["a"], listen=ANY_PORT, settings={"num.partitions": "7", "dev.mode": "true"})
    nodes = opened(tmp_path, wish)
    assert nodes
    for node in nodes:
        read = loaded(node)
        assert (read.node_id, read.rack, read.integer("num.partitions")) == (node.node_id, "a", 7)
        assert read.data_directory == node.data_directory == tmp_path / f"node-{node.node_id}" / "data"


def test_a_directory_with_a_cluster_is_used_as_it_is(tmp_path: Path) -> None:
    before = opened(tmp_path, wished(brokers=2, racks=["a", "b"], listen=ANY_PORT))
    ran(before)
    assert opened(tmp_path, wished()) == before
    assert opened(tmp_path, wished(brokers=2, racks=["a", "b"], controllers=0, listen=ANY_PORT)) == before
    changed = opened(tmp_path, wished(settings={"num.partitions": "7"}))
    assert [loaded(node).integer("num.partitions") for node in changed] == [7, 7]
    assert [node.address for node in changed] == [node.address for node in before]


@pytest.mark.parametrize(
    ("wish", "option"),
    [
        (wished(brokers=3), "--brokers"),
        (wished(controllers=1), "--controllers"),
        (wished(racks=["c"]), "--racks"),
        (wished(listen=ListenerAddress(name="PLAINTEXT", host="127.0.0.1", port=1)), "--listen"),
    ],
)
def test_a_cluster_of_another_form_is_not_what_was_asked_for(tmp_path: Path, wish: ClusterWish, option: str) -> None:
    ran(opened(tmp_path, wished(brokers=2, racks=["a", "b"], listen=ANY_PORT)))
    with pytest.raises(KafkaError, match=option):
        opened(tmp_path, wish)


def test_a_cluster_is_looked_for_on_the_host_too(tmp_path: Path) -> None:
    ran(opened(tmp_path, wished(brokers=1, listen=ANY_PORT)))
    assert opened(tmp_path, wished(listen=ListenerAddress(name="PLAINTEXT", host="localhost", port=0)))
    with pytest.raises(KafkaError, match="--listen"):
        opened(tmp_path, wished(listen=ListenerAddress(name="PLAINTEXT", host="127.0.0.2", port=0)))


def test_several_nodes_that_listen_on_a_wildcard_are_asked_for_a_host(tmp_path: Path) -> None:
    wildcard, insecure = ListenerAddress(name="PLAINTEXT", host="0.0.0.0", port=0), {"listener.insecure.allow": "true"}
    with pytest.raises(KafkaError, match="--listen 0.0.0.0:0: .*name this machine"):
        opened(tmp_path, wished(listen=wildcard, settings=insecure))
    stated = {**insecure, "advertised.listeners": "PLAINTEXT://db.example:0"}
    assert opened(tmp_path, wished(brokers=1, listen=wildcard, settings=stated))


def test_a_cluster_that_was_moved_is_the_same_cluster(tmp_path: Path) -> None:
    before = opened(tmp_path / "old", wished(brokers=2, listen=ANY_PORT, settings={"num.partitions": "7"}))
    ran(before[:1])  # the other was not started yet
    moved = tmp_path / "new"
    (tmp_path / "old").rename(moved)
    nodes = opened(moved, wished())
    assert [node.data_directory for node in nodes] == [moved / "node-1" / "data", moved / "node-2" / "data"]
    for node, other in zip(nodes, before, strict=True):
        assert {**node.settings, "log.dirs": ""} == {**other.settings, "log.dirs": ""}
        assert loaded(node).data_directory == node.data_directory


def test_a_cluster_is_the_same_under_every_name_of_its_directory(tmp_path: Path) -> None:
    before = opened(tmp_path / "cluster", wished(brokers=2, listen=ANY_PORT))
    (tmp_path / "link").symlink_to(tmp_path / "cluster")
    assert opened(tmp_path / "link", wished(brokers=2, listen=ANY_PORT)), "it has not run yet"
    again = opened(tmp_path / "cluster", wished(brokers=2, listen=ANY_PORT))
    ran(again)
    assert [node.settings for node in opened(tmp_path / "link", wished())] == [node.settings for node in again]
    assert [node.home for node in again] == [node.home for node in before]


def test_a_copy_of_a_cluster_does_not_run_on_the_data_of_the_first(tmp_path: Path) -> None:
    ran(opened(tmp_path / "first", wished(brokers=1, listen=ANY_PORT)))
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    with pytest.raises(KafkaError, match=r"log.dirs=.*first/node-1/data, and there are data in .*copy/node-1/data too"):
        opened(tmp_path / "copy", wished())


def test_data_on_a_disk_that_is_missing_are_not_done_without(tmp_path: Path) -> None:
    """A cluster is not founded again either, though no node seems to have run."""
    disk = tmp_path / "disk"
    (node,) = opened(tmp_path / "cluster", wished(brokers=1, listen=ANY_PORT, settings={"log.dirs": str(disk)}))
    text = node.config_file.read_text()
    with pytest.raises(KafkaError, match=f"log.dirs={disk}, and nothing is there"):
        opened(tmp_path / "cluster", wished(brokers=3))
    assert node.config_file.read_text() == text
    ran([node])
    assert opened(tmp_path / "cluster", wished()) == [node]


def test_data_without_settings_are_not_founded_over(tmp_path: Path) -> None:
    first, _ = opened(tmp_path, wished(brokers=2, listen=ANY_PORT))
    ran([first])
    first.config_file.unlink()
    with pytest.raises(KafkaError, match="node-1/data has a node's data, and there is no .*node-1/server.properties"):
        opened(tmp_path, wished())


def test_settings_that_are_the_same_are_not_written_again(tmp_path: Path) -> None:
    """A full disk does not prevent a start, and a user's comment in the file stays."""
    nodes = opened(tmp_path, wished(brokers=2, listen=ANY_PORT))
    ran(nodes)
    for node in nodes:
        node.config_file.write_text("# mine\n" + node.config_file.read_text())
    before = [node.config_file.stat().st_ino for node in nodes]
    assert opened(tmp_path, wished()) == nodes
    assert [node.config_file.stat().st_ino for node in nodes] == before


def test_settings_are_on_the_disk_before_anything_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "fdatasync", note)
    (node,) = opened(tmp_path / "cluster", wished(brokers=1, listen=ANY_PORT))
    assert {tmp_path, tmp_path / "cluster", node.home} < set(synced)
    assert any(path.name.startswith("server.properties") for path in synced)


def test_settings_that_cannot_be_written_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdatasync", fill)
    with pytest.raises(KafkaError, match="node-1/server.properties.*No space left"):
        opened(tmp_path, wished(brokers=1, listen=ANY_PORT))


def test_a_cluster_whose_nodes_never_ran_is_founded_anew(tmp_path: Path) -> None:
    opened(tmp_path, wished(brokers=2, listen=ANY_PORT))
    assert len(opened(tmp_path, wished(brokers=3, listen=ANY_PORT))) == 3


def test_nodes_of_an_attempt_that_came_to_nothing_are_forgotten(tmp_path: Path) -> None:
    opened(tmp_path, wished(brokers=5, listen=ANY_PORT))
    founded = opened(tmp_path, wished(brokers=3, listen=ANY_PORT))
    ran(founded)
    assert opened(tmp_path, wished()) == founded


def test_nodes_cannot_share_a_port_for_metrics(tmp_path: Path) -> None:
    fixed, free = ({"metrics.listener": f"127.0.0.1:{port}"} for port in (9404, 0))
    with pytest.raises(KafkaError, match="metrics.listener=127.0.0.1:9404: nodes 1 and 2 cannot both listen there"):
        opened(tmp_path, wished(listen=ANY_PORT, settings=fixed))
    assert not list(tmp_path.iterdir())
    assert len(opened(tmp_path, wished(listen=ANY_PORT, settings=free))) == 3
    assert len(opened(tmp_path / "one", wished(brokers=1, listen=ANY_PORT, settings=fixed))) == 1


def test_a_bad_setting_changes_nothing(tmp_path: Path) -> None:
    nodes = opened(tmp_path, wished(listen=ANY_PORT))
    ran(nodes)
    before = [node.config_file.read_text() for node in nodes]
    with pytest.raises(KafkaError, match="num.partition"):
        opened(tmp_path, wished(settings={"num.partition": "7"}))
    assert [node.config_file.read_text() for node in nodes] == before


def test_the_directory_of_a_single_node_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").touch()
    with pytest.raises(KafkaError, match="single node"):
        opened(tmp_path, wished())


@pytest.mark.parametrize("wish", [wished(brokers=0), wished(brokers=101), wished(controllers=6)])
def test_numbers_have_limits(tmp_path: Path, wish: ClusterWish) -> None:
    with pytest.raises(KafkaError) as caught:
        opened(tmp_path, wish)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert not list(tmp_path.iterdir())


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    ran(opened(tmp_path, wished(brokers=1, listen=ANY_PORT)))
    (node,) = opened(tmp_path, wished())
    address = ("127.0.0.1", int(node.address.rpartition(":")[2]))
    with socket.create_server(address), pytest.raises(OSError, match="cannot listen on 127.0.0.1"):
        opened(tmp_path, wished())
