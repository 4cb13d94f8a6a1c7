"""The security options of reads and writes: they reach the clients, and no secret reaches a plan."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from tailrace.client.settings import ClientSettings
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.spark.cluster_access import ClusterAccess
from tailrace.spark.reading.readers import TailraceReader
from tailrace.spark.reading.source_options import parse_source_options
from tailrace.spark.reading.stream_reader import TailraceStreamReader
from tailrace.spark.source import ROW
from tailrace.spark.writing.sink import TailraceStreamWriter, TailraceWriter
from tailrace.spark.writing.sink_options import parse_sink_options

CANARY = "canary"
SERVERS = "127.0.0.1:9092"
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = f'{MODULE} required username="alice" password="{CANARY}";'
SASL = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "SCRAM-SHA-512"}
BASE = {"kafka.bootstrap.servers": SERVERS, "subscribe": "flights", "topic": "flights"}


def read(options: Mapping[str, str]) -> ClusterAccess:
    return parse_source_options({**BASE, **options}, streaming=False).cluster


def streamed(options: Mapping[str, str]) -> ClusterAccess:
    return parse_source_options({**BASE, **options}, streaming=True).cluster


def written(options: Mapping[str, str]) -> ClusterAccess:
    return parse_sink_options({**BASE, **options}).cluster


KINDS = pytest.mark.parametrize("parse", [read, streamed, written])
Parse = Callable[[Mapping[str, str]], ClusterAccess]


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., str]:
    """Writes a file of settings; returns the reference to the file."""

    def write(*settings: str) -> str:
        file = tmp_path / "client.properties"
        file.write_text("\n".join(settings))
        return f"file:{file}"

    return write


@KINDS
def test_the_options_are_the_settings_of_the_clients(
    parse: Parse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OF_ALICE", CANARY)
    options = {
        "kafka.security.protocol": "SASL_SSL",
        "KAFKA.SASL.MECHANISM": "scram-sha-512",
        "kafka.sasl.jaas.config": JAAS.replace(CANARY, "env:OF_ALICE"),
        "kafka.ssl.truststore.location": "/certs/ca.pem",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }
    settings = parse(options).settings()
    expected = ClientSettings(
        SERVERS,
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_jaas_config=options["kafka.sasl.jaas.config"],
        ssl_truststore_location="/certs/ca.pem",
        ssl_endpoint_identification_algorithm="",
    )
    assert settings == expected
    sasl = settings.sasl()
    assert sasl is not None
    assert sasl.password.reveal() == CANARY
    assert "ignored" not in "\n".join(record.message for record in caplog.records if "kafka.s" in record.message)


def test_a_connection_is_plain_by_default_and_by_name() -> None:
    assert read({}).settings() == read({"kafka.security.protocol": "plaintext"}).settings() == ClientSettings(SERVERS)


@KINDS
def test_credentials_are_the_lines_of_a_file_of_settings(
    parse: Parse, lines: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("security.protocol=SASL_SSL", "sasl.mechanism=SCRAM-SHA-512", f"sasl.jaas.config={JAAS}", "# the end")
    monkeypatch.setenv("OF_THE_TEAM", "\n".join(given))
    for reference in (lines(*given), "env:OF_THE_TEAM"):
        access = parse({"credentials": reference, "kafka.ssl.ca.location": "/certs/ca.pem"})
        settings = access.settings()
        assert (settings.security_protocol, settings.sasl_jaas_config) == ("SASL_SSL", JAAS)
        assert settings.ssl_truststore_location == "/certs/ca.pem"
        assert CANARY not in repr(access)
        assert CANARY.encode() not in cloudpickle.dumps(access)


def test_credentials_are_read_when_a_client_is_made(lines: Callable[..., str]) -> None:
    begin = ("security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", "sasl.username=alice")
    access = read({"credentials": lines(*begin, "sasl.password=old")})
    assert access.settings().sasl_password == "old"
    lines(*begin, "sasl.password=new")
    assert access.settings().sasl_password == "new"


def test_other_settings_in_the_file_of_credentials_are_not_used(
    lines: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    reference = lines("security.protocol=SSL", "bootstrap.servers=elsewhere:9092", "group.id=team")
    access = read({"credentials": reference})
    assert access.settings().servers == SERVERS
    texts = [record.message for record in caplog.records if "credentials" in record.message]
    assert texts == [f"option credentials: only settings of security are used of {reference}"]


SECRETS = [
    {**SASL, "kafka.sasl.jaas.config": JAAS},
    {**SASL, "kafka.sasl.jaas.config": f"nonsense {CANARY}"},
    {**SASL, "kafka.sasl.username": "alice", "kafka.sasl.password": CANARY},
    {**SASL, "kafka.sasl.plain.username": "alice", "kafka.sasl.plain.password": CANARY},
    {"kafka.security.protocol": "SSL", "kafka.ssl.key.password": CANARY},
    {"kafka.security.protocol": "SSL", "kafka.ssl.keystore.key": CANARY, "kafka.ssl.certificate.pem": "x"},
    {"kafka.security.protocol": "SSL", "kafka.ssl.key.pem": CANARY, "kafka.ssl.certificate.pem": "x"},
]


@KINDS
@pytest.mark.parametrize("options", SECRETS, ids=lambda options: max(name for name in options if options[name] != "x"))
def test_a_secret_in_an_option_is_refused_with_the_way_out(
    parse: Parse, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    name = next(name for name, value in options.items() if CANARY in value)
    with pytest.raises(KafkaError, match=f"option {name}: a secret in an option would show") as refused:
        parse(options)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert "env:NAME or file:PATH" in refused.value.detail
    assert "credentials=file:PATH" in refused.value.detail
    assert CANARY not in f"{refused.value} {refused.value!r} {caplog.text}"


@KINDS
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.security.protocol": "TLS"}, "option kafka.security.protocol 'TLS'; say PLAINTEXT, SSL"),
        ({"kafka.security.protocol": " "}, "option kafka.security.protocol: is empty"),
        ({"kafka.sasl.password": ""}, "option kafka.sasl.password: is empty"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "option kafka.sasl.mechanism: this needs security.protocol SASL_SSL"),
        (SASL, "option kafka.sasl.username and sasl.password: SASL needs both"),
        ({**SASL, "kafka.sasl.mechanizm": "PLAIN"}, "option kafka.sasl.mechanizm: .* did you mean 'sasl_mechanism'"),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.password": "x"},
            "option kafka.ssl.truststore.password: .* a PEM file with certificates has no password",
        ),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.type": "JKS"},
            "option kafka.ssl.truststore.type: must be PEM; `openssl pkcs12",
        ),
        ({"kafka.security.providers": "x"}, "option kafka.security.providers: Tailrace has no setting"),
        ({"security.protocol": "SASL_SSL"}, "option security.protocol: say kafka.security.protocol"),
        ({"sasl.password": CANARY}, "option sasl.password: say kafka.sasl.password"),
        ({"credentials": CANARY}, "option credentials: must be file:PATH or env:NAME"),
        ({"credentials": "env:NO_SUCH_VARIABLE"}, "option credentials: the environment variable NO_SUCH_VARIABLE of"),
        ({"credentials": "file:/no/file"}, "option credentials: cannot read the file /no/file of a secret"),
        ({"credentials": " "}, "option credentials: is empty"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(parse: Parse, options: dict[str, str], message: str) -> None:
    with pytest.raises(KafkaError, match=message) as refused:
        parse(options)
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        (["group.id=g"], {}, "has no line such as security.protocol=SASL_SSL"),
        ([r"sasl.password=\uxyz"], {}, "has no lines of settings"),
        (["sasl.pasword=canary"], {}, "credentials=file:.*: sasl.pasword: .* did you mean 'sasl_password'"),
        (["ssl.keystore.type=JKS"], {}, "credentials=file:.*: ssl.keystore.type: must be PEM"),
        (
            ["security.protocol=SSL"],
            {"kafka.security.protocol": "SSL"},
            "option kafka.security.protocol: the settings of credentials=file:.* have it too",
        ),
    ],
)
def test_wrong_lines_are_refused_by_their_names(
    lines: Callable[..., str], settings: list[str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(KafkaError, match=message) as refused:
        read({**options, "credentials": lines(*settings)})
    assert CANARY not in str(refused.value)


def test_a_plan_is_pickled_to_tasks_with_references_alone(
    lines: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = lines("sasl.mechanism=SCRAM-SHA-512", f"sasl.jaas.config={JAAS}")
    options = {**BASE, "kafka.security.protocol": "SASL_SSL", "credentials": reference}
    source, sink = parse_source_options(options, streaming=True), parse_sink_options(options)
    plans: list[Any] = [
        TailraceReader(ROW, source),
        TailraceStreamReader(ROW, source),
        TailraceWriter(ROW, sink),
        TailraceStreamWriter(ROW, sink),
    ]
    for plan in plans:
        sent = cloudpickle.dumps(plan)
        assert CANARY.encode() not in sent
        assert reference.encode() in sent
        assert CANARY not in f"{plan!r} {vars(plan)}"


def test_an_executor_without_the_file_says_so_with_its_name(lines: Callable[..., str]) -> None:
    reference = lines("security.protocol=SSL")
    access = read({"credentials": reference})
    Path(reference.removeprefix("file:")).unlink()
    with pytest.raises(
        KafkaError, match="option credentials: cannot read the file .* of a secret: No such file.*, on "
    ):
        access.settings()


def test_logging_of_everything_shows_no_secret(lines: Callable[..., str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    reference = lines("security.protocol=SASL_SSL", "sasl.mechanism=SCRAM-SHA-512", f"sasl.jaas.config={JAAS}")
    read({"credentials": reference}).settings()
    assert CANARY not in caplog.text
