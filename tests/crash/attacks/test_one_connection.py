"""A connection with fetches of a large session, or with other requests of many names, and a writer with acks=all.

By default one attack of each kind, which no busy machine outlasts: the verdict is that the writer's records are
acknowledged while the attack goes on. ATTACKS=all in the environment tries every attack with product settings, on an
idle machine, and asks that no broker is fenced and the writer's p99 is 200 ms at most:

    ATTACKS=all python -m pytest -s tests/crash/attacks/test_one_connection.py
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from crash.attacks.connection import DEADLINE_S
from crash.attacks.floods import FEW_LOOKUPS, FLOODS, Flood, Flooder
from crash.attacks.sessions import ATTACKS, FEW, Attack, Attacker
from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.testing import Cluster

ALL = os.environ.get("ATTACKS") == "all"
PATIENT = {"broker.session.timeout.ms": "60000", "log.dir.stall.timeout.ms": "60000"}
WRITES = 200 if ALL else 12
LONGEST_P99_S = 0.2


@contextmanager
def attacked(address: str, attack: Attack | Flood) -> Iterator[Attacker | Flooder]:
    attacker = Attacker(address, attack) if isinstance(attack, Attack) else Flooder(address, attack)
    attacker.open()
    attacker.start()
    try:
        yield attacker
    finally:
        attacker.stop()


def fenced(cluster: Cluster) -> list[str]:
    """The lines of brokers that were fenced, by the logs of all nodes."""
    logs = "\n".join(map(cluster.log_text, cluster.node_ids))
    return re.findall(r"event=broker-fenced.*", logs)


@pytest.mark.crash
@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize("attack", [*ATTACKS, *FLOODS] if ALL else [FEW, FEW_LOOKUPS], ids=lambda attack: attack.name)
def test_a_writer_is_served_beside_a_connection_that_asks_without_end(attack: Attack | Flood) -> None:
    with Cluster(brokers=3, config={} if ALL else PATIENT) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name="orders", partitions=1, replication_factor=3)])
        (orders,) = admin.describe_topics(["orders"])
        leader = orders.partitions[0].leader
        for name, partitions in attack.idle_topics if isinstance(attack, Attack) else ():
            idle = {number: [leader] for number in range(partitions)}
            admin.create_topics([NewTopic(name=name, assignments=idle)])
        took: list[float] = []
        with (
            Producer(cluster.bootstrap_servers, acks="all", linger_ms=0) as producer,
            attacked(cluster.address(leader), attack) as attacker,
        ):
            producer.send("orders", b"the first finds the leader").result(DEADLINE_S)
            served, reads_answers = attacker.served, getattr(attack, "reads_answers", True)
            deadline = time.monotonic() + DEADLINE_S
            while len(took) < WRITES or (reads_answers and attacker.served == served):
                began = time.monotonic()
                assert began < deadline, "the attack goes on"
                producer.send("orders", b"value").result(DEADLINE_S)
                took.append(time.monotonic() - began)
            served = attacker.served - served
        took.sort()
        p50, p99, longest = (1000 * took[int(len(took) * share)] for share in (0.5, 0.99, 0.9999))
        print(  # noqa: T201
            f"{attack.name}: {served} answered beside {len(took)} writes,"
            f" p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {longest:.0f} ms"
        )
        assert fenced(cluster) == []
        if ALL:
            assert p99 <= 1000 * LONGEST_P99_S
