"""The client of a schema registry against a server that a script answers for."""

import base64
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tailrace.model.errors import KafkaError
from tailrace.spark.avro import registry as client
from tailrace.spark.avro.columns import column_type
from tailrace.spark.avro.formats import RegistryOptions, Server
from tailrace.spark.avro.registry import NotRegistered, SchemaRegistry, SchemaUnusable
from tailrace.spark.reading.source_options import parse_source_formats
from testkit.programs.schema_registry import ScriptedRegistry, respond_with

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE_S", 0.0)


@pytest.fixture
def server() -> Iterator[ScriptedRegistry]:
    with ScriptedRegistry() as server:
        yield server


def _options(url: str, **more: str) -> RegistryOptions:
    formats = parse_source_formats(
        {"valueFormat": "confluent-avro", "valueSubject": "s", "schema.registry.url": url, **more}
    )
    assert formats.registry is not None
    return formats.registry


def _registry(url: str, **more: str) -> SchemaRegistry:
    return SchemaRegistry(_options(url, **more))


def _shown(fault: pytest.ExceptionInfo[KafkaError]) -> str:
    return str(fault.value)


def test_a_schema_is_asked_for_once(server: ScriptedRegistry) -> None:
    schema_id = server.register("orders-value", ORDER)
    registry = _registry(server.url + "/")
    assert registry.type_of(schema_id) == registry.type_of(schema_id)
    assert column_type(registry.type_of(schema_id)).simpleString() == "struct<id:bigint>"
    assert [asked.path for asked in server.asked] == [f"/schemas/ids/{schema_id}"]


def test_the_least_used_schemas_are_forgotten(server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_SCHEMAS", 2)
    ids = [server.register(f"s{number}", ORDER) for number in range(3)]
    registry = _registry(server.url)
    for schema_id in (ids[0], ids[1], ids[0], ids[2], ids[0], ids[1]):
        registry.type_of(schema_id)
    assert [int(asked.path.rpartition("/")[2]) for asked in server.asked] == [ids[0], ids[1], ids[2], ids[1]]


def test_the_latest_schema_of_a_subject_is_asked_for_each_time(server: ScriptedRegistry) -> None:
    registry = _registry(server.url)
    server.register("odd/subject ü", '"int"')
    assert column_type(registry.latest("odd/subject ü")).simpleString() == "int"
    server.scripts["/subjects/s/versions/latest"] = [respond_with(200, b'{"schema": "\\"long\\""}')]
    assert column_type(registry.latest("s")).simpleString() == "bigint"
    assert server.asked[0].path == "/subjects/odd%2Fsubject%20%C3%BC/versions/latest"


def test_references_are_fetched_each_before_the_schemas_that_need_it(server: ScriptedRegistry) -> None:
    money = {"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}
    server.register("money", money)
    to_money = [{"name": "Money", "subject": "money", "version": 1}]
    price = {"type": "record", "name": "Price", "fields": [{"name": "net", "type": "Money"}]}
    server.register("price", price, references=to_money)
    references = [{"name": "Price", "subject": "price", "version": 1}, *to_money]
    fields = [{"name": "price", "type": "Price"}, {"name": "fee", "type": "Money"}]
    order = server.register("orders", {**ORDER, "fields": fields}, references=references)
    column = column_type(_registry(server.url).type_of(order))
    assert column.simpleString() == "struct<price:struct<net:struct<cents:bigint>>,fee:struct<cents:bigint>>"
    assert len(server.asked) == 3


def test_references_in_a_circle_or_without_end_are_refused(
    server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    circle = server.register(
        "a",
        {**ORDER, "fields": [{"name": "x", "type": "Other"}]},
        references=[{"name": "Other", "subject": "b", "version": 1}],
    )
    server.register(
        "b",
        {"type": "record", "name": "Other", "fields": [{"name": "y", "type": "Order"}]},
        references=[{"name": "Order", "subject": "a", "version": 1}],
    )
    with pytest.raises(SchemaUnusable, match=f"schema {circle} of {server.url}: not an Avro schema"):
        _registry(server.url).type_of(circle)
    monkeypatch.setattr(client, "MOST_REFERENCES", 3)
    for number in range(10):
        server.register(f"n{number}", ORDER, references=[{"name": "N", "subject": f"n{number + 1}", "version": 1}])
    with pytest.raises(SchemaUnusable, match="refers to more than 3 schemas"):
        _registry(server.url).latest("n0")


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({}, None),
        ({"basic.auth.user.info": "alice:se:cret"}, "Basic " + base64.b64encode(b"alice:se:cret").decode()),
        ({"bearer.auth.token": "abc.def"}, "Bearer abc.def"),
        (
            {"basic.auth.user.info": "zoë:ß", "basic.auth.credentials.source": "USER_INFO"},
            "Basic " + base64.b64encode("zoë:ß".encode()).decode(),
        ),
    ],
)
def test_credentials_are_sent(server: ScriptedRegistry, options: dict[str, str], header: str | None) -> None:
    schema_id = server.register("s", ORDER)
    _registry(server.url, **options).type_of(schema_id)
    assert server.asked[0].authorization == header


@pytest.mark.parametrize(
    ("option", "text", "header"),
    [
        ("basic.auth.user.info", "alice:secret", "Basic " + base64.b64encode(b"alice:secret").decode()),
        ("bearer.auth.token", "abc.def", "Bearer abc.def"),
    ],
)
def test_credentials_may_stand_elsewhere(
    server: ScriptedRegistry,
    option: str,
    text: str,
    header: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = _registry(server.url, **{option: "env:OF_THE_REGISTRY"})
    schema_id = server.register("s", ORDER)
    with pytest.raises(KafkaError, match=f"option {option}: the environment variable OF_THE_REGISTRY of a secret"):
        registry.type_of(schema_id)
    monkeypatch.setenv("OF_THE_REGISTRY", "\n")
    with pytest.raises(KafkaError, match=f"option {option}: (must be USER:PASSWORD|has a character)"):
        registry.type_of(schema_id)
    monkeypatch.setenv("OF_THE_REGISTRY", text)
    registry.type_of(schema_id)
    assert [asked.authorization for asked in server.asked] == [header]
    assert "env:NAME or file:PATH" not in caplog.text
    _registry(server.url, **{option: text})
    assert f"option {option}: Spark keeps options in plans" in caplog.text
    assert text not in caplog.text


def test_credentials_of_the_url_are_sent_and_not_shown(server: ScriptedRegistry) -> None:
    url = f"http://alice:s%3Acret@127.0.0.1:{server.port}"
    with pytest.raises(NotRegistered) as fault:
        _registry(url).type_of(5)
    assert server.asked[0].authorization == "Basic " + base64.b64encode(b"alice:s:cret").decode()
    assert f"the schema registry has no schema 5 ({server.url}/schemas/ids/5)" in _shown(fault)
    assert "cret" not in _shown(fault)


def test_a_missing_subject_is_named(server: ScriptedRegistry) -> None:
    with pytest.raises(NotRegistered, match="has no subject orders-value"):
        _registry(server.url).latest("orders-value")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_fault_that_may_pass_is_asked_again(server: ScriptedRegistry, status: int) -> None:
    schema_id = server.register("s", ORDER)
    path = f"/schemas/ids/{schema_id}"
    good = respond_with(200, json.dumps({"schema": json.dumps(ORDER)}).encode())
    server.scripts[path] = [respond_with(status), respond_with(status), good]
    _registry(server.url).type_of(schema_id)
    assert len(server.asked) == 3
    server.scripts[path] = [respond_with(status, b"secret of the server")]
    with pytest.raises(KafkaError) as fault:
        _registry(server.url).type_of(schema_id)
    assert f"does not answer for schema {schema_id}, 3 times asked; {server.url}{path}: status {status}" in _shown(
        fault
    )
    assert "schema.registry.url is right" in _shown(fault)
    assert "secret" not in _shown(fault)
    assert len(server.asked) == 6


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, b"<html>", "answered for schema 1 with something else than a schema"),
        (200, b"[]", "answered for schema 1 with something else than a schema"),
        (200, b"{}", "answered for schema 1 with something else than a schema"),
        (200, b'{"schema": 5}', "answered for schema 1 with something else than a schema"),
        (200, b'{"schema": "\\"int\\"", "references": 5}', "answered for schema 1 with something else than a schema"),
        (200, b'{"schema": "\\"int\\"", "references": [{}]}', "answered for schema 1 with something else"),
        (200, b"[" * 100_000, "answered for schema 1 with something else than a schema"),
        (404, b"<html>", "status 404 Not Found for schema 1; is schema.registry.url a schema registry"),
        (404, b'{"error_code": 404}', "status 404 Not Found for schema 1; is schema.registry.url a schema registry"),
        (401, b'{"message": "Authorization: Basic YWxpY2U6c2VjcmV0"}', "status 401 Unauthorized .* other credentials"),
        (403, b"", "status 403 Forbidden .* by basic.auth.user.info or bearer.auth.token"),
        (422, b"", "status 422 .* is schema.registry.url a schema registry"),
        (777, b"", "status 777"),
    ],
)
def test_an_answer_that_is_none_is_refused(server: ScriptedRegistry, status: int, body: bytes, message: str) -> None:
    server.scripts["/schemas/ids/1"] = [respond_with(status, body)]
    with pytest.raises(KafkaError, match=message) as fault:
        _registry(server.url, **{"basic.auth.user.info": "alice:secret"}).type_of(1)
    assert server.url in _shown(fault)
    assert not any(secret in _shown(fault) for secret in ("secret", "YWxpY2U6c2VjcmV0", "alice"))
    assert len(server.asked) == (3 if status == 777 else 1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"schemaType": "PROTOBUF"}, "schema 1 of .* is PROTOBUF, not AVRO"),
        ({"schemaType": "\x1b[2J"}, "schema 1 of .* is of another type, not AVRO"),
        ({"schema": "{"}, "schema 1 of .*: not JSON"),
        ({"schema": '{"type": "array", "items": "null"}'}, "schema 1 of .*: an array of items without bytes"),
    ],
)
def test_a_schema_that_is_not_decoded_is_named(server: ScriptedRegistry, more: dict[str, str], message: str) -> None:
    server.scripts["/schemas/ids/1"] = [respond_with(200, json.dumps({"schema": '"int"', **more}).encode())]
    with pytest.raises(SchemaUnusable, match=message):
        _registry(server.url).type_of(1)


def test_a_redirect_takes_no_credentials_along(server: ScriptedRegistry) -> None:
    with ScriptedRegistry() as other:
        server.scripts["/schemas/ids/1"] = [respond_with(302, b"", Location=f"{other.url}/schemas/ids/1")]
        with pytest.raises(KafkaError, match="status 302 Found"):
            _registry(server.url, **{"bearer.auth.token": "t"}).type_of(1)
        assert other.asked == []


def test_a_huge_answer_is_given_up(server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LONGEST_ANSWER", 1_000)
    server.scripts["/schemas/ids/1"] = [respond_with(200, b"{" + b" " * 5_000)]
    with pytest.raises(KafkaError, match="the answer has more than 1000 bytes"):
        _registry(server.url).type_of(1)


def _silent(server: ScriptedRegistry) -> Any:
    def respond(request: BaseHTTPRequestHandler) -> None:
        server.is_over.wait(60)

    return respond


def _slow(server: ScriptedRegistry, before: bytes) -> Any:
    """Sends a byte again and again: no wait of the client is long, and the answer never ends."""

    def respond(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(before)
        try:
            while not server.is_over.wait(0.02):
                request.wfile.write(b" ")
        except OSError:
            return

    return respond


@pytest.mark.parametrize("answer", ["none", "header", "body"])
def test_an_answer_that_does_not_end_is_given_up(server: ScriptedRegistry, answer: str) -> None:
    begun = {
        "none": None,
        "header": b"HTTP/1.1 200 OK\r\nX: ",
        "body": b"HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n",
    }
    before = begun[answer]
    server.scripts["/schemas/ids/1"] = [_silent(server) if before is None else _slow(server, before)]
    with pytest.raises(KafkaError, match="3 times asked; .*no whole answer within 200 ms; .* longer http"):
        _registry(server.url, **{"http.read.timeout.ms": "200"}).type_of(1)


@pytest.mark.parametrize(
    "before",
    [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 secret\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"],
)
def test_an_answer_that_is_not_http_is_not_quoted(server: ScriptedRegistry, before: bytes) -> None:
    def respond(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(before)
        request.close_connection = True

    server.scripts["/schemas/ids/1"] = [respond]
    with pytest.raises(KafkaError, match="no answer in HTTP") as fault:
        _registry(server.url).type_of(1)
    assert not any(text in _shown(fault) for text in ("SSH", "secret"))


def test_the_next_server_is_asked_when_one_is_away(server: ScriptedRegistry) -> None:
    schema_id = server.register("s", ORDER)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        away = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        _registry(f"{away},{server.url}").type_of(schema_id)
        with pytest.raises(KafkaError, match=f"3 times asked; {away}/schemas/ids/1: .*refused"):
            _registry(away).type_of(1)


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    (server,) = _options("http://[::1]:8081/api").servers
    assert server == Server("http", "::1", 8081, "/api")
    assert server.shown == "http://[::1]:8081/api"


def test_tls_is_verified_with_the_ca_that_is_given(server: ScriptedRegistry, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*request, *more], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.use_tls(context)
    schema_id = server.register("s", ORDER)
    url = f"https://127.0.0.1:{server.port}"
    _registry(url, **{"schema.registry.ssl.ca.location": str(certificate)}).type_of(schema_id)
    with pytest.raises(KafkaError, match="certificate verify failed"):
        _registry(url).type_of(schema_id)
    with pytest.raises(KafkaError, match=r"options schema.registry.ssl.\*: .*missing.pem cannot be used"):
        _registry(url, **{"schema.registry.ssl.ca.location": str(tmp_path / "missing.pem")}).type_of(schema_id)


def test_readers_of_a_process_share_a_registry(server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_registries", {})
    options = _options(server.url)
    assert client.shared_registry(options) is client.shared_registry(_options(server.url))
    assert client.shared_registry(_options(server.url, **{"bearer.auth.token": "t"})) is not client.shared_registry(
        options
    )
