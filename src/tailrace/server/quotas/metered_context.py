"""A request whose client has quotas: its bytes and its time are counted, and its answer states a throttle time."""

from typing import Any, Protocol

from tailrace.protocol.schema import replace
from tailrace.server.context import RequestContext, RequestServices
from tailrace.server.ports import ServerConnection
from tailrace.server.quotas.counts import ClientKey
from tailrace.server.slices import Steps, Stepwise


class RequestMeter(Protocol):
    """The quotas of clients, as seen by a request."""

    def process_ns(self) -> int:
        """The time in ns from an arbitrary start, by which requests are measured."""
        ...

    def charge(self, context: "MeteredContext", response: Any) -> int:
        """Count a request that is about to be answered; returns the throttle time in ms. `response` is None for a
        request that gets no answer."""
        ...

    def fetch_allowance(self, client: ClientKey) -> int | None:
        """The bytes of records that a fetch of the client may have, see `ClientQuota.allowance`."""
        ...


class MeteredContext(RequestContext):
    """A request of a node with quotas. It is answered at once; then nothing is read from the client for the throttle
    time (KIP-219)."""

    is_metered = True

    __slots__ = ("_began_ns", "_is_charged", "_is_exempt", "_meter", "_used_ns", "client", "request_bytes")

    def __init__(
        self,
        connection: ServerConnection,
        slot: int,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        services: RequestServices,
        *,
        meter: RequestMeter,
        request_bytes: int,
    ) -> None:
        """`request_bytes`: the size of the frame."""
        super().__init__(connection, slot, api_key, api_version, correlation_id, client_id, services)
        self.client: ClientKey = self.identity.principal.partition(":")[2], client_id or ""
        self.request_bytes = request_bytes
        self._meter = meter
        self._began_ns = meter.process_ns()
        self._used_ns = -1
        self._is_exempt = self._is_charged = False

    @property
    def used_ns(self) -> int:
        """The time that this node has worked for the request, without waits."""
        return self._meter.process_ns() - self._began_ns if self._used_ns < 0 else self._used_ns

    def handled(self) -> None:
        self._used_ns = self.used_ns

    def exempt(self) -> None:
        self._is_exempt = True

    @property
    def fetch_allowance(self) -> int | None:
        return self._meter.fetch_allowance(self.client)

    def throttled(self, response: Any) -> Any:
        if self._is_exempt or self._is_charged:
            return response
        self._is_charged = True
        # The active controller states the throttle time of forwarded mutations.
        stated_ms = getattr(response, "throttle_time_ms", 0)
        throttle_ms = max(self._meter.charge(self, response), stated_ms)
        if throttle_ms:
            self.connection.throttle(throttle_ms)
            if stated_ms != throttle_ms and hasattr(response, "throttle_time_ms"):
                return replace(response, throttle_time_ms=throttle_ms)
        return response

    def send(self, response: Any) -> None:
        super().send(self.throttled(response))

    def sent_in_steps(self, response: Any) -> Steps:
        yield from super().sent_in_steps(self.throttled(response))

    def respond_nothing(self) -> None:
        super().respond_nothing()
        self.throttled(None)

    def go_on_with(self, steps: Steps, *, is_large: bool = False) -> None:
        super().go_on_with(self._timed(steps), is_large=is_large)

    def _timed(self, steps: Steps) -> Stepwise[None]:
        """The same steps; their time counts."""
        self.handled()
        while True:
            began_ns = self._meter.process_ns()
            try:
                next(steps)
            except StopIteration:
                return
            finally:
                self._used_ns += self._meter.process_ns() - began_ns
            yield
