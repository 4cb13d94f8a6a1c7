"""The events of the audit log: bounds for each client, and what lines have."""

from typing import Any

from tailrace.model.access import Operation, SecuredResource, SecuredType
from tailrace.model.identity import ClientIdentity
from tailrace.server import audit
from tailrace.server.audit import ADMINISTRATION, AUTHENTICATION, DENIED, AuditTrail, DeniedAccesses
from tailrace.server.authorizer import PERMIT_ALL
from tailrace.server.context import RequestContext, RequestServices
from tailrace.server.response_errors import ResponseErrors
from tailrace.testing.clock import ManualClock
from testkit.nodes.ports import RecordingConnection

MALLORY = ClientIdentity("CLIENTS", "10.0.0.66", "User:mallory")
ALICE = ClientIdentity("CLIENTS", "10.0.0.1", "User:alice")
SECRET = SecuredResource(SecuredType.TOPIC, "secret")


class Trail:
    """A trail, and its lines."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.lines: list[Any] = []
        self.trail = AuditTrail(self.lines.append, clock=self.clock)

    def events(self) -> list[tuple[str, str, int | None]]:
        return [(line["event"], line["principal"], line.get("count")) for line in self.lines]


def test_a_client_with_many_denials_hides_no_other_client() -> None:
    bench = Trail()
    for _ in range(500):
        bench.trail.record(DENIED, MALLORY, dict)
    bench.trail.record(DENIED, ALICE, dict)
    bench.trail.record(AUTHENTICATION, MALLORY, dict)
    assert len(bench.lines) == audit.LINES_OF_CLIENT + 2
    bench.clock.advance(audit.WINDOW_MS)
    left_out = 500 - audit.LINES_OF_CLIENT
    assert bench.events()[-1] == ("left-out", "User:mallory", left_out)
    assert bench.trail.left_out == left_out
    bench.trail.record(DENIED, MALLORY, dict)  # a new window
    assert bench.events()[-1] == (DENIED, "User:mallory", None)


def test_the_number_of_clients_in_a_window_is_bounded() -> None:
    bench = Trail()
    for number in range(audit.MOST_CLIENTS + 500):
        bench.trail.record(DENIED, MALLORY._replace(address=f"2001:db8::{number:x}"), dict)
    assert len(bench.lines) == audit.MOST_CLIENTS + audit.LINES_OF_CLIENT
    bench.clock.advance(audit.WINDOW_MS)
    assert bench.events()[-1] == ("left-out", "", 500 - audit.LINES_OF_CLIENT)


def test_administration_is_never_left_out() -> None:
    bench = Trail()
    for _ in range(500):
        bench.trail.record(ADMINISTRATION, ALICE, dict)
    assert len(bench.lines) == 500


def test_a_denied_access_is_counted_and_has_the_request_and_the_reason() -> None:
    bench = Trail()
    denied = DeniedAccesses(bench.trail)
    services = RequestServices(ResponseErrors(), None, PERMIT_ALL, denied)
    connection = RecordingConnection(principal="User:mallory", listener="CLIENTS")
    context = RequestContext(connection, 0, 1, 12, 4711, "c" * 1_000, services)
    denied.note(context, Operation.READ, SECRET, PERMIT_ALL)
    assert denied.counts == {(SecuredType.TOPIC, Operation.READ): 1}
    (line,) = bench.lines
    assert line["client_id"] == "c" * audit.LONGEST_TEXT + "..."
    assert {name: line[name] for name in line if name not in ("time_ms", "client_id")} == {
        "event": "denied",
        "principal": "User:mallory",
        "address": "127.0.0.1",
        "listener": "CLIENTS",
        "api_key": 1,
        "correlation_id": 4711,
        "operation": "READ",
        "resource_type": "TOPIC",
        "resource": "secret",
        "reason": "there is no authorizer",
    }
