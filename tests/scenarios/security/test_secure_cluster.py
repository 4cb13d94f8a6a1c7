"""A secured cluster on one machine: `tailrace up --secure` and `Cluster(secure=True)`, with its first user."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace import Admin, Consumer, Producer
from tailrace.metadata.user_commands import CredentialUpsertion
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.security.scram import ScramMechanism
from tailrace.node.founding_users import FILE_NAME, FoundingUsers, upsertion_of_password
from tailrace.node.local.supervisor import READY
from tailrace.storage.files import OsFiles
from tailrace.testing import Cluster
from tailrace.testing.node_process import package_path


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, secure=True, config={"default.replication.factor": "3"}) as nodes:
        yield nodes


def test_the_calls_of_the_kit_work_on_a_secured_cluster(cluster: Cluster) -> None:
    cluster.create_topic("orders", partitions=2)
    cluster.produce("orders", [("a", "1"), ("b", "2")])
    cluster.assert_holds("orders", [("a", "1"), ("b", "2")])
    assert len(cluster.read_all("orders")) == 2
    cluster.wait_until_in_sync("orders")
    assert cluster.wait_until_leader("orders") in cluster.broker_ids
    assert cluster.controller_id in cluster.node_ids
    count = 0
    with Consumer(
        cluster.client_settings, topics=["orders"], group="readers", auto_offset_reset="earliest"
    ) as consumer:
        while count < 2:
            count += len(consumer.poll(10.0))
        consumer.commit()
    cluster.wait_for_lag("readers", "orders")


def test_the_first_user_is_in_the_log_and_no_file_has_it_any_more(cluster: Cluster) -> None:
    with Admin(cluster.client_settings) as admin:
        assert "admin" in [user.name for user in admin.list_users()]
    assert not [node for node in cluster.node_ids if (cluster.data_dir(node) / FILE_NAME).exists()]


def test_a_client_without_settings_a_user_or_a_right_is_refused(cluster: Cluster) -> None:
    with pytest.raises(KafkaError), Producer(cluster.bootstrap_servers, bootstrap_timeout_ms=3_000) as producer:
        producer.send("orders", b"x").get(timeout=10)
    settings = cluster.client_settings
    wrong = settings["sasl.jaas.config"].replace('password="', 'password="not-')
    with pytest.raises(KafkaError) as refused, Admin({**settings, "sasl.jaas.config": wrong}) as admin:
        admin.list_topics()
    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    with Admin(settings) as admin:
        admin.set_password("alice", "of-alice")
    alice = {
        **{name: text for name, text in settings.items() if name != "sasl.jaas.config"},
        "sasl.username": "alice",
        "sasl.password": "of-alice",
    }
    with pytest.raises(KafkaError) as refused, Producer(alice) as producer:
        producer.send("orders", b"x").get(timeout=30)
    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_restarted_and_an_added_node_are_secured_too(cluster: Cluster) -> None:
    cluster.restart(1)
    added = cluster.add_node()
    cluster.start(added)
    cluster.create_topic("later", partitions=1, replication_factor=4)
    cluster.produce("later", ["x"])
    cluster.assert_holds("later", ["x"])


def user(name: str, password: str) -> CredentialUpsertion:
    return upsertion_of_password(name, password, mechanism=ScramMechanism.SHA_256, iterations=4_096)


def test_the_file_of_founding_users_is_secret_and_closed_after_the_founding(tmp_path: Path) -> None:
    users = FoundingUsers(str(tmp_path), files=OsFiles())
    users.set(user("alice", "canary"))
    users.set(user("bob", "canary"))
    users.set(user("alice", "another"))
    written = tmp_path / FILE_NAME
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert "canary" not in written.read_text()
    assert [record.name for record in users.read()] == ["", "alice", "bob"]
    with pytest.raises(KafkaError) as refused:
        users.set(upsertion_of_password("eve", "x", mechanism=ScramMechanism.SHA_256, iterations=10))
    assert refused.value.code is ErrorCode.UNACCEPTABLE_CREDENTIAL
    with Cluster(directory=tmp_path / "cluster", config={"node.id": "1", "log.dirs": str(tmp_path)}) as nodes:
        with Admin(nodes.bootstrap_servers) as admin:
            assert [each.name for each in admin.list_users()] == ["alice", "bob"]
        assert not written.exists()
    with pytest.raises(KafkaError, match="belongs to a cluster already"):
        users.set(user("carol", "canary"))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": package_path(os.environ)}
    return subprocess.run(
        [sys.executable, "-m", "tailrace", *words], capture_output=True, text=True, timeout=120, env=environment
    )


def up(directory: Path, *words: str) -> tuple[subprocess.Popen[str], str]:
    """The running command, and the address of its broker."""
    with (directory.parent / "up.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace", "up", "--data-dir", str(directory), "--until-stdin-closes", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": package_path(os.environ)},
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(READY), (directory.parent / "up.log").read_text()
    return process, line.removeprefix(READY).split()[0]


def test_up_secure_is_one_command_and_a_second_start_uses_its_files_again(tmp_path: Path) -> None:
    directory, words = tmp_path / "cluster", ("--secure", "--brokers", "1", "--listen", "127.1:0")
    kept: list[dict[str, bytes]] = []
    for _ in range(2):
        process, address = up(directory, *words)
        with process:
            file = directory / "security" / "client.properties"
            assert f"topics list --bootstrap-server {address} --command-config" in (tmp_path / "up.log").read_text()
            way = ("--bootstrap-server", address, "--command-config", str(file))
            if not kept:
                assert run("topics", "create", "kept", *way).returncode == 0
            assert "kept" in run("topics", "list", *way).stdout
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == 0
        files = list((directory / "security").iterdir())
        kept.append({each.name: each.read_bytes() for each in files})
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in files}
        assert modes == {name: 0o644 if name == "ca.pem" else 0o600 for name in modes}
    assert kept[0] == kept[1]


def test_a_cluster_without_security_is_not_opened_as_secured(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path / "cluster"):
        pass
    refused = run("up", "--secure", "--data-dir", str(tmp_path / "cluster"))
    assert refused.returncode == 1
    assert "another form than --secure asks for" in refused.stderr


def test_users_are_added_offline_before_the_first_start_of_a_controller(tmp_path: Path) -> None:
    password, file = tmp_path / "password", tmp_path / "server.properties"
    password.write_text("of-alice\n")
    file.write_text(f"node.id=1\nlog.dirs={tmp_path / 'data'}\nlisteners=127.0.0.1:0\n")
    words = ("users", "add", "alice", "--password-file", str(password))
    added = run(*words, "--offline", "--config", str(file))
    assert added.returncode == 0, added.stderr
    assert [record.name for record in FoundingUsers(str(tmp_path / "data"), files=OsFiles()).read()] == ["", "alice"]
    assert run(*words, "--offline").returncode == 2
