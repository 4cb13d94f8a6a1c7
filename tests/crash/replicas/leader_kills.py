"""kill -9 of leaders under a load with acks=all, and the records that are there afterwards.

KILLS in the environment says how often; `make soak` runs more.
"""

import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from crash.access import client_settings
from crash.replicas.replicated_load import PARTITIONS, RESUMES_WITHIN_S, TOPIC, ReplicatedLoad
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

KILLS = int(os.environ.get("KILLS", "4"))


def leader_of(admin: AdminClient, partition: int) -> int:
    def leader() -> int:
        return int(admin.list_topics(TOPIC, timeout=RESUMES_WITHIN_S).topics[TOPIC].partitions[partition].leader)

    wait_until(lambda: leader() > 0, f"{TOPIC}-{partition} has a leader", deadline_s=RESUMES_WITHIN_S)
    return leader()


def kill_leaders(
    tmp_path: Path,
    chance: random.Random,
    *,
    config: Mapping[str, str] | None = None,
    prepare: Callable[[Cluster], None] = lambda _: None,
) -> None:
    """Kill leaders under load, and look for lost and repeated records. `prepare` is called before clients connect."""
    kills: list[tuple[float, int]] = []
    with Cluster(brokers=3, config=config, directory=tmp_path / "cluster") as cluster:
        prepare(cluster)
        admin = AdminClient(client_settings(cluster.bootstrap_servers))
        new = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([new])[TOPIC].result(RESUMES_WITHIN_S)
        load = ReplicatedLoad(cluster.bootstrap_servers, tmp_path / "history")
        with load.running():
            for _ in range(KILLS):
                partition = chance.randrange(PARTITIONS)
                leader = leader_of(admin, partition)
                cluster.kill(leader)
                kills.append((time.monotonic(), partition))
                time.sleep(chance.uniform(0.2, 4))
                cluster.start(leader)
                time.sleep(chance.uniform(0.5, 3))
        acked = load.acknowledged()
        found = load.read_all(acked)
    for number, values in found.items():
        sequence = [int(values[offset]) for offset in sorted(values)]
        assert sequence == sorted(set(sequence)), f"partition {number} is out of order, or has something twice"
    for kill, led in kills:
        times = [at for at, partition, *_ in acked if partition == led]
        assert any(kill + RESUMES_WITHIN_S > at > kill for at in times), "nothing was acknowledged after a kill"
    print(f"{len(acked)} acknowledged through {KILLS} kills")  # noqa: T201
