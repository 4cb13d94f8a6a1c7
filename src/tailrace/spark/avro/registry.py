"""A client of a schema registry: the schemas of ids, and the latest schemas of subjects.

1. Each request has a deadline from its first byte to the last of the answer, so that an answer of a byte a second ends
   too; an answer has 4 MiB at most, and redirects are refused, since credentials would go along.
2. A request that fails for a reason that may pass (no connection, no answer, status 429 or 5xx) is sent three times to
   each server, with pauses between. Then the error names the server and the request.
3. No message has credentials, or any text of an answer.
"""

import base64
import http.client
import json
import platform
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.secrets import Secret
from tailrace.spark.avro.formats import RegistryOptions, Server, check_token, check_user_info
from tailrace.spark.avro.schema import AvroType, SchemaRefused, parse_avro_schema
from tailrace.spark.given_options import fault

LONGEST_ANSWER: Final = 4 * 1024 * 1024
MOST_SCHEMAS: Final = 1_000
"""Schemas by id that a process keeps: the last used."""
MOST_REFERENCES: Final = 100
"""Schemas that a schema refers to, directly or not."""
ATTEMPTS: Final = 3
PAUSE_S: Final = 0.25
"""The pause before the second attempt; the pause before the third attempt is twice as long."""

_HEADERS: Final = {"Connection": "close", "Accept": "application/vnd.schemaregistry.v1+json, application/json"}
_NOT_FOUND: Final = (40401, 40402, 40403)
"""The registry's own codes: no such subject, version, schema. A 404 without a code is of another server."""


class NotRegistered(KafkaError):
    """The registry has no such schema or subject."""


class SchemaUnusable(KafkaError):
    """A schema that the registry has and that this source does not decode."""


class _Answer(NamedTuple):
    status: int
    body: bytes


class SchemaRegistry:
    """The client of one thread. It holds no connections.

    All methods raise KafkaError: NotRegistered, SchemaUnusable, or another KafkaError if the registry gives no proper
    answer.
    """

    def __init__(self, options: RegistryOptions) -> None:
        self._options = options
        self._context: ssl.SSLContext | None = None
        self._types: OrderedDict[int, AvroType] = OrderedDict()

    def type_of(self, schema_id: int) -> AvroType:
        """The schema with this id."""
        known = self._types.get(schema_id)
        if known is None:
            known = self._parsed(f"/schemas/ids/{schema_id}", f"schema {schema_id}")
            self._types[schema_id] = known
            while len(self._types) > MOST_SCHEMAS:
                self._types.popitem(last=False)
        else:
            self._types.move_to_end(schema_id)
        return known

    def latest(self, subject: str) -> AvroType:
        """The latest schema of the subject, not cached."""
        return self._parsed(f"/subjects/{quote(subject, safe='')}/versions/latest", f"subject {subject}")

    def _parsed(self, path: str, name: str) -> AvroType:
        answer = self._get(path, name)
        references: dict[str, str] = {}
        self._collect(answer, references, name)
        try:
            return parse_avro_schema(self._text(answer, name), references.values())
        except SchemaRefused as wrong:
            raise SchemaUnusable(ErrorCode.INVALID_RECORD, f"{name} of {self._shown}: {wrong}") from None

    def _collect(self, answer: Mapping[str, Any], into: dict[str, str], name: str) -> None:
        """Add the texts of the schemas to which this one refers, by their paths, each after its own references."""
        references = answer.get("references") or []
        if not isinstance(references, list):
            raise self._nonsense(name)
        for each in references:
            match each:
                case {"subject": str(subject), "version": int(version)}:
                    path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
                case _:
                    raise self._nonsense(name)
            if path in into:
                continue
            if len(into) >= MOST_REFERENCES:
                reason = f"{name} of {self._shown} refers to more than {MOST_REFERENCES} schemas"
                raise SchemaUnusable(ErrorCode.INVALID_RECORD, reason)
            into[path] = ""  # a reference in a circle ends here; fastavro then misses its name
            inner_name = f"version {version} of subject {subject}"
            inner = self._get(path, inner_name)
            self._collect(inner, into, inner_name)
            del into[path]
            into[path] = self._text(inner, inner_name)

    def _text(self, answer: Mapping[str, Any], name: str) -> str:
        kind = answer.get("schemaType") or "AVRO"
        if kind != "AVRO":
            known = kind if kind in ("JSON", "PROTOBUF") else "of another type"
            raise SchemaUnusable(ErrorCode.INVALID_RECORD, f"{name} of {self._shown} is {known}, not AVRO")
        text = answer.get("schema")
        if not isinstance(text, str):
            raise self._nonsense(name)
        return text

    @property
    def _shown(self) -> str:
        return " or ".join(server.shown for server in self._options.servers)

    def _nonsense(self, name: str) -> KafkaError:
        reason = f"{self._shown} answered for {name} with something else than a schema"
        return KafkaError(ErrorCode.INVALID_REQUEST, f"{reason}; is schema.registry.url a schema registry?")

    def _get(self, path: str, name: str) -> Mapping[str, Any]:
        """The answer, an object of JSON."""
        faults: list[str] = []
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE_S * 2 ** (attempt - 1))
            for server in self._options.servers:
                try:
                    answer = self._request(server, path)
                except (OSError, http.client.HTTPException) as wrong:
                    faults.append(f"{server.shown}{path}: {_reason(wrong)}")
                    continue
                if answer.status == HTTPStatus.TOO_MANY_REQUESTS or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    faults.append(f"{server.shown}{path}: {_status(answer.status)}")
                    continue
                return self._read(answer, f"{server.shown}{path}", name)
        raise KafkaError(
            ErrorCode.NETWORK_EXCEPTION,
            f"the schema registry does not answer for {name}, {len(faults)} times asked; {faults[-1]}; "
            "see whether it runs and schema.registry.url is right, or say a longer http.read.timeout.ms",
        )

    def _read(self, answer: _Answer, url: str, name: str) -> Mapping[str, Any]:
        parsed = _object(answer.body)
        if answer.status == HTTPStatus.OK:
            if parsed is None:
                raise self._nonsense(name)
            return parsed
        if answer.status == HTTPStatus.NOT_FOUND and parsed is not None and parsed.get("error_code") in _NOT_FOUND:
            raise NotRegistered(ErrorCode.RESOURCE_NOT_FOUND, f"the schema registry has no {name} ({url})")
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            way_out = "say other credentials by basic.auth.user.info or bearer.auth.token"
        else:
            way_out = "is schema.registry.url a schema registry?"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{url}: {_status(answer.status)} for {name}; {way_out}")

    def _request(self, server: Server, path: str) -> _Answer:
        """Make a request. Raises OSError or HTTPException, also for an answer that is late or too long."""
        timeout_s = self._options.timeout_ms / 1000
        connection = self._connection(server, timeout_s)
        is_late = threading.Event()
        watch = threading.Timer(timeout_s, _cut, (connection, is_late))
        watch.daemon = True
        watch.start()
        try:
            connection.connect()
            if not is_late.is_set():
                connection.request("GET", f"{server.path}{path}", headers={**_HEADERS, **self._credentials()})
                response = connection.getresponse()
                answer = _Answer(response.status, response.read(LONGEST_ANSWER + 1))
                if response.length and len(answer.body) <= LONGEST_ANSWER:
                    raise http.client.IncompleteRead(b"", response.length)
            if is_late.is_set():
                raise TimeoutError
        except (OSError, http.client.HTTPException, ValueError) as wrong:
            if is_late.is_set() or isinstance(wrong, TimeoutError):
                raise TimeoutError(f"no whole answer within {self._options.timeout_ms} ms") from None
            if isinstance(wrong, ValueError) and not isinstance(wrong, OSError):  # of a header or a cut socket
                raise http.client.HTTPException from None
            raise
        finally:
            watch.cancel()
            connection.close()
        if len(answer.body) > LONGEST_ANSWER:
            raise OSError(f"the answer has more than {LONGEST_ANSWER} bytes")
        return answer

    def _connection(self, server: Server, timeout_s: float) -> http.client.HTTPConnection:
        if server.scheme == "http":
            return http.client.HTTPConnection(server.host, server.port, timeout=timeout_s)
        if self._context is None:
            self._context = _tls(self._options)
        return http.client.HTTPSConnection(server.host, server.port, timeout=timeout_s, context=self._context)

    def _credentials(self) -> dict[str, str]:
        if self._options.token is not None:
            token = _revealed("bearer.auth.token", self._options.token)
            check_token(token)
            return {"Authorization": f"Bearer {token}"}
        if self._options.user_info is not None:
            user_info = _revealed("basic.auth.user.info", self._options.user_info)
            check_user_info(user_info)
            return {"Authorization": f"Basic {base64.b64encode(user_info.encode()).decode()}"}
        return {}


def _revealed(option: str, given: str) -> str:
    """The credential, perhaps at the place that a reference names. Raises KafkaError(INVALID_REQUEST)."""
    try:
        return Secret(given).reveal()
    except KafkaError as wrong:
        raise fault(option, f"{wrong.detail}, on {platform.node()}") from None


def _tls(options: RegistryOptions) -> ssl.SSLContext:
    """Raises KafkaError for files that cannot be used."""
    password = _revealed("schema.registry.ssl.key.password", options.key_password or "")
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        if options.certificate_file is not None:
            # An empty password for an unencrypted file: OpenSSL would ask on the terminal for a missing password.
            context.load_cert_chain(options.certificate_file, options.key_file, password)
    except (OSError, ValueError) as wrong:
        files = ", ".join(filter(None, (options.ca_file, options.certificate_file, options.key_file)))
        reason = f"options schema.registry.ssl.*: {files} cannot be used: {type(wrong).__name__}"
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{reason}; they are PEM files on the driver and on all executors"
        ) from None
    return context


def _cut(connection: http.client.HTTPConnection, is_late: threading.Event) -> None:
    """End the wait of the request's thread: a time-out of the socket starts anew with each byte."""
    is_late.set()
    if connection.sock is not None:
        try:
            connection.sock.shutdown(2)
        except OSError:
            return  # closed a moment ago


def _reason(wrong: Exception) -> str:
    """A reason without text of an answer, which errors of HTTP quote."""
    if isinstance(wrong, http.client.HTTPException):
        return f"no answer in HTTP ({type(wrong).__name__})"
    return str(wrong)[:200] or type(wrong).__name__


def _status(status: int) -> str:
    try:
        return f"status {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"status {status}"


def _object(body: bytes) -> Mapping[str, Any] | None:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


_registries: dict[RegistryOptions, SchemaRegistry] = {}
_MOST_REGISTRIES: Final = 16


def shared_registry(options: RegistryOptions) -> SchemaRegistry:
    """The client of this process, with the schemas that it knows: Spark reuses its workers."""
    if options not in _registries:
        if len(_registries) >= _MOST_REGISTRIES:
            _registries.clear()
        _registries[options] = SchemaRegistry(options)
    return _registries[options]
