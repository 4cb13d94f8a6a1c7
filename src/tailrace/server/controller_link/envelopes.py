"""Envelopes (Envelope, 58; KIP-590): sealed at a broker, carried out by the active controller.

An envelope has a whole request with its header, and the answer comes back in the same way. The principal has Kafka's
form.

`EnvelopeHandler` is for the controllers' listener alone, since it believes the identity of the client in an envelope. A
fault of an envelope is an error of the envelope, as in Kafka: NOT_CONTROLLER, so that the sender looks for another
node; INVALID_REQUEST for bytes that are not a request, for an API that is not forwarded (above all an envelope), and
for a bad address; UNSUPPORTED_VERSION; PRINCIPAL_DESERIALIZATION_FAILURE. A fault of the request is in the request's
own answer.

Senders of Tailrace number their requests. Within one leader epoch the request of a number is carried out once: a second
envelope with the number gets the answer to the first. If that answer is already forgotten, the second envelope is
refused. Numbers come in any order: after a fail-over each request is repeated when its own back-off is over. An
envelope of a past or future epoch is refused.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from ipaddress import ip_address
from itertools import count
from struct import Struct
from typing import Any, Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.model.identity import ClientIdentity
from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse, PrincipalData
from tailrace.protocol.registry import APIS, FORWARDED_APIS, api_of
from tailrace.protocol.request_headers import RequestHeader, decode_request_header
from tailrace.protocol.schema import ZERO_UUID, decode, encode_bytes
from tailrace.server.audit import DeniedAccesses
from tailrace.server.authorizer import PERMIT_ALL, Authorizer
from tailrace.server.context import RequestContext
from tailrace.server.dispatch import Dispatcher, HandlerTable
from tailrace.server.ports import Buffer
from tailrace.server.quorum.controller import QuorumController
from tailrace.server.response_errors import error_codes
from tailrace.server.slices import LongRequests

_VERSION: Final = Struct(">h")
_PRINCIPAL_VERSION: Final = 0
_NOWHERE: Final = "127.0.0.1"
_ADDRESS_SIZES: Final = (4, 16)


_MOVED: Final = frozenset((ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_LEADER_OR_FOLLOWER))
"""NOT_LEADER_OR_FOLLOWER is the error of the replica of the metadata log."""


def has_moved(response: Any) -> bool:
    """Whether the response says that the answering node is not, or no longer, the active controller."""
    return not _MOVED.isdisjoint(error_codes(response))


SENDER: Final = ClientIdentity(listener_name="", address="", principal=":")
"""In place of a client: the request is the sender's own, and has the rights of the sender. No client has this
principal."""


class Client(NamedTuple):
    """The client of a forwarded request."""

    client_id: str | None
    correlation_id: int
    identity: ClientIdentity


class Sealed:
    """A request that is ready for envelopes: each attempt gets a new envelope."""

    __slots__ = ("_data", "client", "number", "request", "sender_id", "version")

    def __init__(self, request: Any, version: int, client: Client, number: int, sender_id: bytes) -> None:
        self.request = request
        self.version = version
        self.client = client
        self.number = number
        self.sender_id = sender_id
        self._data: bytes | None = None

    def envelope(self, leader_epoch: int) -> EnvelopeRequest:
        """A new envelope for the active controller of this epoch."""
        client = self.client
        if self._data is None:  # encoded once: the request may be long, and the attempts many
            self._data = b"".join(encode_request(self.request, self.version, client.correlation_id, client.client_id))
        return EnvelopeRequest(
            request_data=self._data,
            request_principal=encode_principal(client.identity.principal),
            client_host_address=encode_address(client.identity.address),
            leader_epoch=leader_epoch,
            sender_id=self.sender_id,
            request_number=self.number,
        )

    def answer(self, response: EnvelopeResponse) -> Any:
        """The answer in the envelope. Raises KafkaError UNKNOWN_SERVER_ERROR if the envelope has no answer.

        As in Kafka, a client does not see an error of the envelope itself. The exception is REQUEST_TIMED_OUT, which
        means that the request may have been carried out, and that its outcome is forgotten.
        """
        if response.error_code == ErrorCode.REQUEST_TIMED_OUT:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the active controller does not remember what came of it")
        if response.error_code or response.response_data is None:
            raise _not_passed_on(f"error {response.error_code}")
        try:
            correlation_id, answer = decode_response(
                api_of(type(self.request)).response, self.version, response.response_data
            )
        except MalformedMessage as fault:
            raise _not_passed_on(fault.detail) from None
        if correlation_id != self.client.correlation_id:
            raise _not_passed_on(f"correlation id {correlation_id} instead of {self.client.correlation_id}")
        return answer


def _not_passed_on(fault: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the request could not be passed on: {fault}")


class Envelopes:
    """Numbers the requests of one process, so that no request is carried out twice."""

    def __init__(self, sender_id: bytes) -> None:
        """`sender_id`: 16 bytes, unique to this start of this process."""
        self._sender_id = sender_id
        self._numbers: Callable[[], int] = count().__next__

    def seal(self, request: Any, version: int, client: Client) -> Sealed:
        return Sealed(request, version, client, self._numbers(), self._sender_id)


def encode_principal(principal: str) -> bytes:
    """The bytes of a principal like `User:alice`."""
    kind, _, name = principal.partition(":")
    data = PrincipalData(type=kind, name=name)
    return _VERSION.pack(_PRINCIPAL_VERSION) + encode_bytes(data, _PRINCIPAL_VERSION)


def decode_principal(data: bytes | None) -> str:
    """Raises KafkaError PRINCIPAL_DESERIALIZATION_FAILURE."""
    try:
        if data is None or len(data) < _VERSION.size or _VERSION.unpack_from(data)[0] != _PRINCIPAL_VERSION:
            raise MalformedMessage("no principal that this release knows")
        found = decode(PrincipalData, _PRINCIPAL_VERSION, data, _VERSION.size)
    except MalformedMessage as fault:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, fault.detail) from None
    return f"{found.type}:{found.name}"


def encode_address(address: str) -> bytes:
    """The bytes of an address like `127.0.0.1` or `::1%lo`."""
    text = address.partition("%")[0]
    try:
        return ip_address(text or _NOWHERE).packed
    except ValueError:
        return ip_address(_NOWHERE).packed


def decode_address(data: bytes) -> str:
    """Raises KafkaError INVALID_REQUEST."""
    if len(data) not in _ADDRESS_SIZES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"an address of {len(data)} bytes")
    return str(ip_address(data))


MAX_SENDERS: Final = 1_000
MAX_REMEMBERED: Final = 256
"""The most answers to one sender that are kept for repeated envelopes."""
MAX_REMEMBERED_BYTES: Final = 1 << 20
"""The memory for the kept answers of one sender."""
MAX_NUMBERS: Final = 4_096
"""The most numbers of one sender that are remembered without their answers: four times the requests that a sender may
have under way."""

OnAnswer = Callable[[EnvelopeResponse], None]


class _Request:
    """The connection of a request from an envelope: it stands for the client's connection, with the data from the
    sender."""

    is_open = True

    def __init__(self, identity: ClientIdentity, *, on_answer: Callable[[bytes | None], None]) -> None:
        self.identity = identity
        self._on_answer: Callable[[bytes | None], None] | None = on_answer

    def answer(self, slot: int, chunks: Sequence[Buffer] | None) -> None:
        self._end(None if chunks is None else b"".join(chunks))

    def awaits_answer(self, slot: int) -> bool:
        return self._on_answer is not None

    def suspend(self) -> None:
        """Do nothing: the connection is the sender's, and carries requests of other clients."""

    def go_on(self) -> None:
        """Do nothing, as `suspend`."""

    def throttle(self, throttle_ms: int) -> None:
        """Do nothing: the answer states the time, and the sender throttles its client."""

    def close(self, reason: str) -> None:
        self._end(None)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Do nothing: only the sender notices that the client has gone."""

    def _end(self, data: bytes | None) -> None:
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is not None:
            on_answer(data)


class EnvelopeSender:
    """The requests of one sender in this epoch, by number."""

    def __init__(self) -> None:
        self.waiting: dict[int, list[OnAnswer]] = {}
        self.answers: OrderedDict[int, EnvelopeResponse] = OrderedDict()
        self._size_bytes = 0
        self._without_answer: set[int] = set()
        self._lowest: list[int] = []
        """The same numbers, as a heap."""
        self._forgotten_below = 0

    @property
    def numbers(self) -> int:
        """The number of requests that are remembered without their answers."""
        return len(self._without_answer)

    def has_forgotten(self, number: int) -> bool:
        """Whether the request was, or may have been, carried out, and its answer is forgotten."""
        return number < self._forgotten_below or number in self._without_answer

    def keep(self, number: int, answer: EnvelopeResponse) -> None:
        """Keep the answer, and drop the oldest ones above the limits."""
        self.answers[number] = answer
        self._size_bytes += len(answer.response_data or b"")
        while len(self.answers) > MAX_REMEMBERED or self._size_bytes > MAX_REMEMBERED_BYTES:
            oldest, forgotten = self.answers.popitem(last=False)
            self._size_bytes -= len(forgotten.response_data or b"")
            self._forget_answer(oldest)

    def _forget_answer(self, number: int) -> None:
        self._without_answer.add(number)
        heappush(self._lowest, number)
        if len(self._lowest) > MAX_NUMBERS:
            lowest = heappop(self._lowest)
            self._without_answer.remove(lowest)
            self._forgotten_below = lowest + 1


class EnvelopeHandler:
    """Opens envelopes on the active controller."""

    def __init__(
        self,
        *,
        quorum: QuorumController,
        handlers: HandlerTable,
        on_broken_invariant: Callable[[BaseException], None],
        long: LongRequests | None = None,
        authorizer: Authorizer = PERMIT_ALL,
        denied: DeniedAccesses | None = None,
    ) -> None:
        """`handlers` carry requests out on this node; only handlers of `FORWARDED_APIS` are used. `authorizer` decides
        on the access of the clients that the envelopes name; `denied` takes note of denied accesses."""
        self._quorum = quorum
        self._dispatcher = Dispatcher(
            {api: handler for api, handler in handlers.items() if api.key in FORWARDED_APIS},
            on_broken_invariant=on_broken_invariant,
            long=long,
            authorizer=authorizer,
            denied=denied,
        )
        self._epoch = -1
        self._senders: OrderedDict[bytes, EnvelopeSender] = OrderedDict()

    def handle(self, request: EnvelopeRequest, context: RequestContext) -> None:
        """Raises KafkaError with the errors of an envelope that the module lists."""
        epoch = self._quorum.leader_epoch
        if not self._quorum.is_active or request.leader_epoch not in (-1, epoch):
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this node is not the active controller that is meant")
        header = _checked_header(request.request_data)
        principal, address = decode_principal(request.request_principal), decode_address(request.client_host_address)
        on_answer = self._once(request, context.respond)
        if on_answer is None:
            return

        def answered(data: bytes | None) -> None:
            on_answer(self._response(header, data, epoch))

        client = ClientIdentity(listener_name="", address=address, principal=principal)
        if principal == SENDER.principal:
            client = context.identity
        connection = _Request(client, on_answer=answered)
        self._dispatcher.on_frame(connection, 0, memoryview(request.request_data))

    def _response(self, header: RequestHeader, data: bytes | None, epoch: int) -> EnvelopeResponse:
        if data is None:
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        leads = self._quorum.is_active and self._quorum.leader_epoch == epoch
        if not leads and _says_so(header, data):
            return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
        return EnvelopeResponse(response_data=data, metadata_end_offset=self._quorum.applied_end_offset)

    def _once(self, request: EnvelopeRequest, respond: OnAnswer) -> OnAnswer | None:
        """The callback for the answer; None if this number has come before: then the first envelope's answer is used.

        Raises KafkaError REQUEST_TIMED_OUT if the answer to this number is forgotten.
        """
        if request.sender_id == ZERO_UUID or request.request_number < 0:
            return lambda answer: respond(_as_kafka(answer))
        number, sender = request.request_number, self._sender(request.sender_id)
        if number in sender.answers:
            respond(sender.answers[number])
            return None
        if number in sender.waiting:
            sender.waiting[number].append(respond)
            return None
        if sender.has_forgotten(number):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"request {number} came too late")
        sender.waiting[number] = [respond]

        def answer(response: EnvelopeResponse) -> None:
            waiting = sender.waiting.pop(number)
            sender.keep(number, response)
            for respond_to in waiting:
                respond_to(response)

        return answer

    def _sender(self, sender_id: bytes) -> EnvelopeSender:
        epoch = self._quorum.leader_epoch
        if epoch != self._epoch:
            # Numbers of an earlier epoch need not be remembered: its envelopes are refused by their epoch.
            self._epoch = epoch
            self._senders.clear()
        sender = self._senders.get(sender_id)
        if sender is None:
            sender = self._senders[sender_id] = EnvelopeSender()
            if len(self._senders) > MAX_SENDERS:
                self._senders.popitem(last=False)
        self._senders.move_to_end(sender_id)
        return sender


def _checked_header(data: bytes) -> RequestHeader:
    """The header of a request that may be in an envelope. Raises KafkaError."""
    try:
        header, _ = decode_request_header(data)
    except MalformedMessage as fault:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"no request is in the envelope: {fault.detail}") from None
    api = FORWARDED_APIS.get(header.api_key)
    if api is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"requests of API {header.api_key} are not passed on")
    if not api.serves(header.api_version):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{api.name} v{header.api_version} is not served here")
    return header


def _says_so(header: RequestHeader, data: bytes) -> bool:
    """Whether this answer says that this node is not the active controller."""
    return has_moved(decode_response(APIS[header.api_key].response, header.api_version, data)[1])


def _as_kafka(answer: EnvelopeResponse) -> EnvelopeResponse:
    """The answer without the fields of Tailrace's own senders."""
    return EnvelopeResponse(response_data=answer.response_data, error_code=answer.error_code)
