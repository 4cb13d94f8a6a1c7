"""A new password of the nodes, on one node after the other, while clients work: no request fails."""

import threading
from pathlib import Path

from tailrace import Admin, Producer
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing import Cluster

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


class RotationLoad:
    """Writes records until `stop`, each acknowledged by all replicas in sync."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings
        self._is_stopped = threading.Event()
        self.acknowledged = 0
        self.faults: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Producer(self._settings) as producer:
                while not self._is_stopped.is_set():
                    producer.send("orders", str(self.acknowledged).encode()).get(timeout=120)
                    self.acknowledged += 1
        except BaseException as fault:  # noqa: BLE001 - the test looks at it
            self.faults.append(fault)

    def stop(self) -> None:
        self._is_stopped.set()
        self._thread.join()


def jaas(directory: Path, password: str) -> Path:
    file = directory / f"{password}.jaas"
    file.touch(mode=0o600)
    file.write_text(f'{MODULE} required username="node" password="{password}";\n')
    return file


def restart_each(cluster: Cluster, **settings: Path | None) -> None:
    """Give each node these files, and restart it; a setting without a file is taken away."""
    lines = {f"sasl.jaas.config{'.second' if name == 'second' else ''}": file for name, file in settings.items()}
    for node in cluster.node_ids:
        config = cluster.config_file(node)
        kept = [line for line in config.read_text().splitlines() if line.partition("=")[0] not in lines]
        config.write_text("\n".join([*kept, *(f"{name}=file:{file}" for name, file in lines.items() if file)]) + "\n")
        cluster.restart(node)
        cluster.wait_until_in_sync("orders")


def can_log_in(cluster: Cluster, password: str) -> bool:
    settings = cluster.client_settings
    login = f'{MODULE} required username="node" password="{password}";'
    try:
        with Admin({**settings, "sasl.jaas.config": login}) as admin:
            admin.list_topics()
    except KafkaError as refused:
        if refused.code is not ErrorCode.SASL_AUTHENTICATION_FAILED:
            raise
        return False
    return True


def test_the_password_of_the_nodes_changes_without_a_failed_request(tmp_path: Path) -> None:
    old, new = jaas(tmp_path, "old-password"), jaas(tmp_path, "new-password")
    with Cluster(
        brokers=3,
        secure=True,
        config={"sasl.jaas.config": f"file:{old}", "default.replication.factor": "3", "min.insync.replicas": "2"},
    ) as cluster:
        cluster.create_topic("orders", partitions=1)
        load = RotationLoad(cluster.client_settings)
        try:
            restart_each(cluster, second=new)
            assert can_log_in(cluster, "old-password")
            assert can_log_in(cluster, "new-password")
            restart_each(cluster, first=new, second=old)
            restart_each(cluster, second=None)
        finally:
            load.stop()
        assert load.faults == []
        assert load.acknowledged > 0
        assert not can_log_in(cluster, "old-password")
        assert can_log_in(cluster, "new-password")
        cluster.assert_holds("orders", [str(number) for number in range(load.acknowledged)], timeout=60)
