"""`tailrace sessions`, with brokers that describe their sessions and with some that do not."""

import json
from collections.abc import Callable, Iterator

import pytest

from interop.librdkafka import librdkafka
from tailrace.client.blocking import Admin
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.fetch_sessions import DescribeFetchSessionsRequest
from tailrace.server.dispatch import by_api
from tailrace.server.fetch import session_descriptions
from tailrace.server.fetch.session_descriptions import DescribeFetchSessionsHandler
from testkit.admin_server import AdminServer
from testkit.commands import CommandResult, run_command
from testkit.data_path import BROKER
from testkit.fetch_sessions import ListedOwner, ListedSession, ListedSessions

OTHER = BrokerId(BROKER + 1)
Run = Callable[..., CommandResult]


@pytest.fixture
def cache() -> ListedSessions:
    return ListedSessions(slots=10, evictions=2)


@pytest.fixture
def server(cache: ListedSessions) -> Iterator[AdminServer]:
    with AdminServer() as server:
        handler = DescribeFetchSessionsHandler(cache=cache, clock=server.node.clock)
        server.node.serve({**server.node.broker.handlers, **by_api({DescribeFetchSessionsRequest: handler})})
        yield server


@pytest.fixture
def run(server: AdminServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("TAILRACE_BOOTSTRAP", server.bootstrap_servers)

    def call(*words: str) -> CommandResult:
        return run_command(words, capsys)

    return call


def test_sessions_are_shown_with_readers_and_savings(run: Run, cache: ListedSessions, server: AdminServer) -> None:
    now_ms = server.node.clock.monotonic_ms()
    cache.listed += [
        ListedSession(
            session_id=9,
            epoch=4,
            owner=ListedOwner(replica_id=3),
            client_id="broker-3",
            is_privileged=True,
            partition_count=100,
            created_ms=now_ms - 5_000,
            last_used_ms=now_ms - 20,
            incremental_fetches=3,
            saved_bytes=10_000,
        ),
        ListedSession(session_id=7, uses_topic_ids=False, created_ms=now_ms, last_used_ms=now_ms),
    ]
    done = run("sessions")
    assert (done.code, done.err) == (0, "")
    brokers, sessions = done.out.split("\n\n")
    head, row = brokers.splitlines()
    assert head.split() == ["BROKER", "SLOTS-USED", "SLOTS", "PARTITIONS", "EVICTIONS"]
    assert row.split() == [str(BROKER), "2", "10", "101", "2"]
    consumer, follower = CommandResult(0, sessions, "").rows
    assert (consumer["SESSION-ID"], consumer["REPLICA"], consumer["TOPIC-IDS"]) == ("7", "-", "False")
    assert follower == {
        "BROKER": str(BROKER),
        "SESSION-ID": "9",
        "EPOCH": "4",
        "PRINCIPAL": "User:ANONYMOUS",
        "CLIENT-ID": "broker-3",
        "HOST": "/127.0.0.1",
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


def test_json_has_the_sessions_of_each_broker(run: Run, cache: ListedSessions, server: AdminServer) -> None:
    server.start(OTHER)
    cache.listed.append(ListedSession(session_id=7))
    here, other = json.loads(run("sessions", "-o", "json").out)
    assert (here["BROKER"], other["BROKER"]) == (BROKER, OTHER)
    assert (here["SLOTS-USED"], here["SLOTS"], here["PARTITIONS"], here["EVICTIONS"]) == (1, 10, 1, 2)
    (session,) = here["SESSIONS"]
    assert (session["SESSION-ID"], session["REPLICA"], session["PRIVILEGED"]) == (7, None, False)
    (only,) = json.loads(run("sessions", str(OTHER), "-o", "json").out)
    assert only["BROKER"] == OTHER


def test_all_pages_are_shown(run: Run, cache: ListedSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_descriptions, "MAX_SESSIONS", 2)
    cache.listed += [ListedSession(session_id=number) for number in range(1, 6)]
    (here,) = json.loads(run("sessions", "-o", "json").out)
    assert [session["SESSION-ID"] for session in here["SESSIONS"]] == [1, 2, 3, 4, 5]


def test_a_broker_without_sessions_has_its_row_alone(run: Run) -> None:
    assert run("sessions").rows == [
        {"BROKER": str(BROKER), "SLOTS-USED": "0", "SLOTS": "10", "PARTITIONS": "0", "EVICTIONS": "2"}
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


def test_a_node_describes_its_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a double of the cache."""
    with AdminServer() as plain, Admin(plain.bootstrap_servers) as admin:
        (described,) = admin.describe_fetch_sessions().values()
    assert not isinstance(described, Exception)
    assert described.sessions == ()
