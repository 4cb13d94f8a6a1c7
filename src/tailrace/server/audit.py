"""The events of the audit log (decision 0115): denied accesses, administration, authentication.

The number of events is a client's to choose. So each client has few lines of denials and of authentication in a window,
and at the window's end a line with the number of the lines left out. Events of administration are not left out: their
clients have rights.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from tailrace.model.access import Operation, SecuredResource
from tailrace.model.identity import ClientIdentity
from tailrace.model.ids import ZERO_TOPIC_ID, format_topic_id
from tailrace.server.authorizer import Authorizer
from tailrace.server.ports import Clock

DENIED: Final = "denied"
ADMINISTRATION: Final = "administration"
AUTHENTICATION: Final = "authentication"

LINES_OF_CLIENT: Final = 20
"""The most lines of one client and kind of event in a window."""
WINDOW_MS: Final = 10_000
MOST_CLIENTS: Final = 1_000
"""The most clients in a window with lines of their own; further clients share the lines of one client."""
LONGEST_TEXT: Final = 300
"""The most characters of a text that a client chooses."""

Fields = Mapping[str, Any]


class Audit(Protocol):
    """Takes events. Never blocks, and never raises."""

    def record(self, event: str, identity: ClientIdentity, fields_of: Callable[[], Fields]) -> None:
        """Record an event of a client. `fields_of` makes the rest of the line, if the line is not left out."""
        ...


class _NoAudit:
    def record(self, event: str, identity: ClientIdentity, fields_of: Callable[[], Fields]) -> None:
        pass


NO_AUDIT: Final[Audit] = _NoAudit()
"""The audit of a node without an audit log."""


class _Client(NamedTuple):
    event: str
    principal: str
    address: str


class AuditTrail:
    """An `Audit` that writes lines to `sink`, which may not block."""

    def __init__(self, sink: Callable[[Fields], None], *, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self._lines: Counter[_Client] = Counter()
        """The events of this window."""
        self._is_window_open = False
        self.left_out = 0
        """The number of events left out since the start, for metrics."""

    def record(self, event: str, identity: ClientIdentity, fields_of: Callable[[], Fields]) -> None:
        if event != ADMINISTRATION and not self._admits(_Client(event, identity.principal, identity.address)):
            return
        self._sink(
            {
                "time_ms": self._clock.now_ms(),
                "event": event,
                "principal": shortened(identity.principal),
                "address": identity.address,
                "listener": identity.listener_name,
                **fields_of(),
            }
        )

    def _admits(self, client: _Client) -> bool:
        if not self._is_window_open:
            self._is_window_open = True
            self._clock.call_at(self._clock.monotonic_ms() + WINDOW_MS, self._end_window)
        if client not in self._lines and len(self._lines) >= MOST_CLIENTS:
            client = _Client(client.event, "", "")
        self._lines[client] += 1
        return self._lines[client] <= LINES_OF_CLIENT

    def _end_window(self) -> None:
        lines, self._lines, self._is_window_open = self._lines, Counter(), False
        for client, count in lines.items():
            if count > LINES_OF_CLIENT:
                self.left_out += count - LINES_OF_CLIENT
                self._sink(
                    {
                        "time_ms": self._clock.now_ms(),
                        "event": "left-out",
                        "of": client.event,
                        "principal": shortened(client.principal),
                        "address": client.address,
                        "count": count - LINES_OF_CLIENT,
                    }
                )


class AskedRequest(Protocol):
    """The parts of a request in lines about the request."""

    api_key: int
    correlation_id: int
    client_id: str | None
    identity: ClientIdentity


class DeniedAccesses:
    """Counts denied accesses, and records them in the audit log."""

    def __init__(self, audit: Audit = NO_AUDIT) -> None:
        self.audit: Final = audit
        self.counts: Counter[tuple[int, Operation]] = Counter()
        """The number of denied accesses, by the type of the resource and the operation; for metrics."""

    def note(
        self, request: AskedRequest, operation: Operation, resource: SecuredResource, authorizer: Authorizer
    ) -> None:
        """Note that the request was denied an operation on a resource."""
        self.counts[resource.type, operation] += 1
        if self.audit is NO_AUDIT:
            return

        def fields() -> Fields:
            return {
                **request_fields(request),
                "operation": operation.name,
                "resource_type": resource.type.name,
                "resource": shortened(_name(resource)),
                "reason": authorizer.explain(request.identity, operation, resource),
            }

        self.audit.record(DENIED, request.identity, fields)


def request_fields(request: AskedRequest) -> dict[str, Any]:
    """The fields of a line that name a request."""
    return {
        "api_key": request.api_key,
        "correlation_id": request.correlation_id,
        "client_id": None if request.client_id is None else shortened(request.client_id),
    }


def shortened(text: str) -> str:
    """A text of a client, as long as a line has room for."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."


def _name(resource: SecuredResource) -> str:
    if resource.name or resource.topic_id == ZERO_TOPIC_ID:
        return resource.name
    return format_topic_id(resource.topic_id)
