"""A controller that does not run for a while (a stopped process) holds its own sleep against no broker."""

import time

import pytest

from tailrace.client.blocking import Admin
from tailrace.testing import Cluster

SESSION_MS = 4_000
"""A broker that the machine keeps from running for so long is fenced, and rightly."""
STALL_S = 8.0
"""Twice that."""
TOPIC = "orders"


@pytest.mark.crash
def test_brokers_are_not_fenced_for_the_sleep_of_their_controller() -> None:
    config = {"broker.session.timeout.ms": str(SESSION_MS)}
    with Cluster(brokers=2, controllers=1, config=config) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics({TOPIC: 4})
        before = admin.describe_topics([TOPIC])
        controller_id = cluster.controller_id
        cluster.pause(controller_id)
        time.sleep(STALL_S)  # it must not run for longer than a session: nothing can be waited for instead
        cluster.resume(controller_id)
        admin.create_topics({"another": 1})  # the controller has been at work since it woke
        # Leader epochs rise when a broker is fenced.
        assert admin.describe_topics([TOPIC]) == before
