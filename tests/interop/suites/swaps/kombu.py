"""Kombu: the fixtures `connection` and `failover_connection`, whose address is fixed in the file of the tests."""

from importlib import import_module

import pytest

from tailrace.testing import Cluster


@pytest.fixture(autouse=True)
def swapped(tailrace_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = import_module("t.integration.test_kafka")
    host, _, port = tailrace_cluster.bootstrap_servers.rpartition(":")
    for name in ("get_connection", "get_failover_connection"):
        connect = getattr(tests, name)
        monkeypatch.setattr(tests, name, lambda connect=connect, **_: connect(host, port))
