"""`tailrace sessions`, with brokers that describe their sessions and with some that do not."""

import json
import time

import pytest

from interop.librdkafka import librdkafka
from tailrace.client.admin.topics import NewTopic
from tailrace.client.blocking import Admin
from tailrace.fetch_session.session import SessionOwner
from tailrace.fetch_session.session_cache import FetchSessionCache
from tailrace.model.ids import BrokerId
from tailrace.server.fetch import session_descriptions
from tailrace.testing import Cluster
from testkit.nodes.admin_server import AdminServer
from testkit.nodes.data_path import BROKER
from testkit.nodes.fetch_sessions import open_session
from testkit.nodes.session_reader import SessionReader
from testkit.programs.commands import CommandResult, Run, run_command

OTHER = BrokerId(BROKER + 1)
SECONDS = 60.0


@pytest.fixture
def cache(server: AdminServer) -> FetchSessionCache:
    """The sessions of the broker."""
    return server.node.broker.fetch_sessions.cache


def test_sessions_are_shown_with_readers_and_savings(run: Run, cache: FetchSessionCache, server: AdminServer) -> None:
    now_ms = server.node.clock.monotonic_ms()
    owner = SessionOwner("User:ANONYMOUS", "PLAINTEXT", 3)
    follower = open_session(cache, owner, partitions=100, client_id="broker-3", now_ms=now_ms - 5_000)
    follower.epoch, follower.incremental_fetches, follower.saved_bytes = 4, 3, 10_000
    cache.used(follower, now_ms - 20)
    consumer = open_session(cache, uses_topic_ids=False, now_ms=now_ms)
    cache.evictions = 2
    done = run("sessions")
    assert (done.code, done.err) == (0, "")
    brokers, sessions = done.out.split("\n\n")
    head, row = brokers.splitlines()
    assert head.split() == ["BROKER", "SLOTS-USED", "SLOTS", "PARTITIONS", "EVICTIONS"]
    assert row.split() == [str(BROKER), "2", "1000", "101", "2"]
    shown = {row["SESSION-ID"]: row for row in CommandResult(0, sessions, "").rows}
    of_consumer = shown[str(consumer.session_id)]
    assert (of_consumer["REPLICA"], of_consumer["PRIVILEGED"], of_consumer["TOPIC-IDS"]) == ("-", "False", "False")
    assert shown[str(follower.session_id)] == {
        "BROKER": str(BROKER),
        "SESSION-ID": str(follower.session_id),
        "EPOCH": "4",
        "PRINCIPAL": "User:ANONYMOUS",
        "CLIENT-ID": "broker-3",
        "HOST": "127.0.0.1",
        "LISTENER": "PLAINTEXT",
        "REPLICA": "3",
        "PRIVILEGED": "True",
        "PARTITIONS": "100",
        "TOPIC-IDS": "True",
        "AGE-MS": "5000",
        "IDLE-MS": "20",
        "HITS": "3",
        "SAVED-BYTES": "10000",
    }


def test_json_has_the_sessions_of_each_broker(run: Run, cache: FetchSessionCache, server: AdminServer) -> None:
    server.start(OTHER)  # at the same address: both describe the same cache
    opened = open_session(cache)
    here, other = json.loads(run("sessions", "-o", "json").out)
    assert (here["BROKER"], other["BROKER"]) == (BROKER, OTHER)
    assert (here["SLOTS-USED"], here["SLOTS"], here["PARTITIONS"], here["EVICTIONS"]) == (1, 1_000, 1, 0)
    (session,) = here["SESSIONS"]
    assert (session["SESSION-ID"], session["REPLICA"], session["PRIVILEGED"]) == (opened.session_id, None, False)
    (only,) = json.loads(run("sessions", str(OTHER), "-o", "json").out)
    assert only["BROKER"] == OTHER


def test_all_pages_are_shown(run: Run, cache: FetchSessionCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_descriptions, "MAX_SESSIONS", 2)
    opened = [open_session(cache).session_id for _ in range(5)]
    (here,) = json.loads(run("sessions", "-o", "json").out)
    assert [session["SESSION-ID"] for session in here["SESSIONS"]] == sorted(opened)


def test_a_reader_is_shown_with_the_incremental_fetches_that_it_has_sent(run: Run, server: AdminServer) -> None:
    run("topics", "create", "orders", "--partitions", "10")
    with server.lock:
        reader = SessionReader(server.node, version=11)
        reader.open(dict.fromkeys(range(10), 0))
        for _ in range(3):
            reader.next()
    (here,) = json.loads(run("sessions", "-o", "json").out)
    (session,) = here["SESSIONS"]
    assert (session["PARTITIONS"], session["EPOCH"], session["HITS"], session["TOPIC-IDS"]) == (10, 4, 3, False)
    assert session["SAVED-BYTES"] > 0


def test_a_broker_without_sessions_has_its_row_alone(run: Run) -> None:
    assert run("sessions").rows == [
        {"BROKER": str(BROKER), "SLOTS-USED": "0", "SLOTS": "1000", "PARTITIONS": "0", "EVICTIONS": "0"}
    ]


def test_a_broker_that_does_not_run_is_named_beside_the_others(run: Run) -> None:
    done = run("sessions", str(BROKER), "7")
    assert (done.code, len(done.rows)) == (1, 1)
    assert done.err == "node 7 is not in the cluster now\n"


def test_brokers_that_do_not_describe_sessions_are_named_with_the_way_out(run: Run) -> None:
    foreign = librdkafka().MockCluster()
    done = run("sessions", "--bootstrap-server", foreign.bootstrap())
    assert (done.code, done.out) == (1, "")
    *brokers, way_out = done.err.splitlines()
    assert brokers == [
        f"broker {number} does not describe its fetch sessions: it is no Tailrace, or an older one"
        for number in (1, 2, 3)
    ]
    assert way_out.endswith("kafka.server:type=FetchSessionCache")
    done = run("sessions", "-o", "json", "--bootstrap-server", foreign.bootstrap())
    assert (done.code, json.loads(done.out)) == (1, [])
    del foreign  # the cluster lives as long as this


def test_followers_of_a_cluster_have_privileged_sessions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(brokers=2) as cluster:
        monkeypatch.setenv("TAILRACE_BOOTSTRAP", cluster.bootstrap_servers)
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name="orders", assignments={0: (1, 2), 1: (1, 2), 2: (2, 1)})])
        expected = {(1, 2): 2, (2, 1): 1}  # leader and follower: partitions
        deadline = time.monotonic() + SECONDS
        found: dict[tuple[int, int], int] = {}
        while found != expected and time.monotonic() < deadline:
            brokers = json.loads(run_command(("sessions", "-o", "json"), capsys).out)
            sessions = [session for broker in brokers for session in broker["SESSIONS"] if session["PRIVILEGED"]]
            found = {(row["BROKER"], row["REPLICA"]): row["PARTITIONS"] for row in sessions}
        assert found == expected
        assert all(row["TOPIC-IDS"] for row in sessions)
