"""The options of formats."""

import importlib.util
from typing import Any

import pytest

from tailrace.model.errors import KafkaError
from tailrace.spark import given_options
from tailrace.spark.avro import formats
from tailrace.spark.avro.formats import ColumnFormat, RecordFormats
from tailrace.spark.reading.source_options import parse_source_options
from tailrace.spark.writing.sink_options import parse_sink_options

BASE = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}
PLAIN = {"valueFormat": "avro", "valueSchema": '"string"'}
CONFLUENT = {"valueFormat": "confluent-avro", "schema.registry.url": "http://127.0.0.1:1"}


def _formats(options: dict[str, str], **base: str) -> RecordFormats:
    return parse_source_options({**BASE, **base, **options}, streaming=False).formats


def test_without_formats_nothing_is_decoded(caplog: pytest.LogCaptureFixture) -> None:
    assert _formats({}) == RecordFormats()
    assert _formats({"valueFormat": "Binary", "keyFormat": "binary"}) == RecordFormats()
    assert not caplog.messages


def test_the_subject_is_that_of_the_topic() -> None:
    both = {**CONFLUENT, "keyFormat": "confluent-avro"}
    for base in ({}, {"subscribe": " orders ,"}):
        subjects = [column.subject for column in _formats(both, **base).columns]
        assert subjects == ["orders-key", "orders-value"]
    named = _formats({**CONFLUENT, "valueSubject": "shop.Order", "keyFormat": "avro", "keySchema": '"int"'})
    assert named.columns == (
        ColumnFormat(column="key", wire="avro", schema='"int"'),
        ColumnFormat(column="value", wire="confluent-avro", subject="shop.Order"),
    )
    assert _formats({**CONFLUENT, "valueSchema": '"int"'}, subscribe="a,b").columns[0].subject is None


def test_corrupt_records_have_a_column_if_that_is_asked_for() -> None:
    assert _formats(PLAIN).corrupt_column is None
    assert _formats({**PLAIN, "mode": "failfast"}).corrupt_column is None
    assert _formats({**PLAIN, "mode": "permissive"}).corrupt_column == "_corrupt_record"
    assert _formats({**PLAIN, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}).corrupt_column == "bad"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueFormat": "json"}, "option valueFormat: must be one of binary, avro, confluent-avro, not 'json'"),
        ({"valueFormat": "avro"}, "option valueSchema: is required by valueFormat=avro"),
        ({"keyFormat": "avro", "valueSchema": "x"}, "option keySchema: is required"),
        ({"valueFormat": "confluent-avro"}, "option schema.registry.url: is required by valueFormat=confluent-avro"),
        ({"valueSchema": '"int"'}, "option valueSchema: needs valueFormat=avro or confluent-avro"),
        ({"keySubject": "a"}, "option keySubject: needs keyFormat"),
        ({**PLAIN, "schema.registry.url": "http://x:1"}, "option schema.registry.url: conflicts with the formats"),
        ({**PLAIN, "valueSubject": "a"}, "option valueSubject: conflicts with valueSchema"),
        ({**CONFLUENT, "valueSubject": "a", "valueSchema": "b"}, "option valueSubject: conflicts with valueSchema"),
        ({**CONFLUENT, "valueSubject": ""}, "option valueSubject: is empty"),
        ({"basic.auth.user.info": "a:b"}, "option basic.auth.user.info: conflicts with the formats"),
        ({"mode": "PERMISSIVE"}, "option mode: needs valueFormat or keyFormat"),
        ({**PLAIN, "mode": "DROPMALFORMED"}, "option mode: must be FAILFAST or PERMISSIVE, .* lose records in silence"),
        ({**PLAIN, "mode": "lax"}, "option mode: must be FAILFAST or PERMISSIVE, not 'lax'"),
        ({**PLAIN, "columnNameOfCorruptRecord": "x"}, "option columnNameOfCorruptRecord: needs mode=PERMISSIVE"),
        ({**PLAIN, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "Offset"}, "that no other column has"),
        ({**PLAIN, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": ""}, "columnNameOfCorruptRecord: is empty"),
        ({**CONFLUENT, "schema.registry.url": "registry:8081"}, "option schema.registry.url: must be http://"),
        ({**CONFLUENT, "schema.registry.url": "http://x:99999"}, "option schema.registry.url: must be http://"),
        ({**CONFLUENT, "schema.registry.url": " , "}, "option schema.registry.url: names no registry"),
        ({**CONFLUENT, "basic.auth.user.info": "alice"}, "option basic.auth.user.info: must be USER:PASSWORD"),
        (
            {**CONFLUENT, "basic.auth.credentials.source": "SASL_INHERIT"},
            "basic.auth.credentials.source: must be USER_INFO",
        ),
        ({**CONFLUENT, "bearer.auth.credentials.source": "OAUTHBEARER"}, "must be STATIC_TOKEN"),
        (
            {**CONFLUENT, "bearer.auth.token": "t", "basic.auth.user.info": "a:b"},
            "bearer.auth.token: conflicts with basic",
        ),
        ({**CONFLUENT, "bearer.auth.token": "t\r\nHost: x"}, "bearer.auth.token: has a character"),
        ({**CONFLUENT, "http.read.timeout.ms": "0"}, "option http.read.timeout.ms: must be a whole number above 0"),
        ({**CONFLUENT, "schema.registry.ssl.key.location": "k"}, "needs schema.registry.ssl.certificate.location"),
    ],
)
def test_a_mistake_is_refused_with_its_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(KafkaError, match=message):
        _formats(options)


@pytest.mark.parametrize("base", [{"subscribe": "a,b"}, {"subscribePattern": "a.*"}, {"assign": '{"a":[0],"b":[1]}'}])
def test_topics_without_a_common_schema_are_refused(base: dict[str, str]) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", **base, **CONFLUENT}
    with pytest.raises(KafkaError, match="more than one topic may be read, .* say valueSchema, or valueSubject"):
        parse_source_options(options, streaming=True)


def test_secrets_are_in_no_text() -> None:
    secrets = {
        "schema.registry.url": "https://alice:pass%40word@registry:8081/api/",
        "basic.auth.user.info": "alice:pass@word",
        "schema.registry.ssl.certificate.location": "c",
        "schema.registry.ssl.key.location": "k",
        "schema.registry.ssl.key.password": "hidden",
    }
    formats = _formats({**CONFLUENT, **secrets})
    assert formats.registry is not None
    assert formats.registry.user_info == "alice:pass@word"
    assert [server.shown for server in formats.registry.servers] == ["https://registry:8081/api"]
    text = str(formats) + repr(formats)
    assert not any(secret in text for secret in ("pass", "hidden", "alice"))
    for url in ("http://alice:secret@", "ftp://alice:secret@host", "http://alice:secret@host:port"):
        with pytest.raises(KafkaError) as refusal:
            _formats({**CONFLUENT, "schema.registry.url": url})
        assert "secret" not in str(refusal.value)
    with pytest.raises(KafkaError, match="has another user"):
        _formats({**CONFLUENT, "schema.registry.url": "http://a:b@x,http://c:d@y"})


def test_without_fastavro_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec

    def find(name: str, *more: Any) -> Any:
        return None if name == "fastavro" else find_spec(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(
        KafkaError, match=r"option valueFormat: fastavro is not installed .* pip install 'tailrace\[avro\]'"
    ):
        _formats(PLAIN)
    assert _formats({}) == RecordFormats()


def test_all_options_are_known_to_reads_and_unknown_to_writes(caplog: pytest.LogCaptureFixture) -> None:
    options = (*formats._OF_COLUMNS, formats.MODE, formats.CORRUPT_COLUMN, *formats._OF_REGISTRY)
    assert set(options) <= given_options.NAMES["batch read"] & given_options.NAMES["streaming read"]
    parse_sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders", "valueFormat": "avro"})
    assert "option valueFormat is for reads and is ignored" in caplog.text
