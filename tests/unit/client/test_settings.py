"""Settings of clients: their checks, their names in messages, and the clients that are made of them."""

import inspect
import pickle
from dataclasses import fields
from typing import Any, get_args

import numpy as np
import pytest

import tailrace
from tailrace import aio
from tailrace.client.construction import Configured
from tailrace.client.group.assignors import ASSIGNORS
from tailrace.client.reader_settings import (
    ASSIGNMENT_STRATEGIES,
    ConsumerSettings,
    Isolation,
    KeyedConsumerSettings,
    RangedFetchSettings,
    Reset,
)
from tailrace.client.settings import ClientSettings
from tailrace.client.writer_settings import Compression, ProducerSettings
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.records.compression import Codec

SERVERS = "127.0.0.1:1"
GROUP = {"group": "g", "topics": ("orders",)}
KINDS: dict[type[ClientSettings], dict[str, Any]] = {
    ClientSettings: {},
    ConsumerSettings: {},
    ProducerSettings: {},
    RangedFetchSettings: {},
    KeyedConsumerSettings: GROUP,
}
CLIENTS = {
    "Admin": ClientSettings,
    "Consumer": ConsumerSettings,
    "Producer": ProducerSettings,
    "RangedFetch": RangedFetchSettings,
    "KeyedConsumer": KeyedConsumerSettings,
}


@pytest.mark.parametrize(
    ("kind", "setting", "message", "code"),
    [
        (ConsumerSettings, {"fetch_min_bytes": -1}, "fetch.min.bytes -1; at least 0", ErrorCode.INVALID_CONFIG),
        (
            ConsumerSettings,
            {"max_poll_records": 0},
            "max.poll.records 0; a poll returns at least one record",
            ErrorCode.INVALID_CONFIG,
        ),
        (
            ConsumerSettings,
            {"session_timeout_ms": "45_000"},
            "session.timeout.ms '45_000'; say a whole number",
            ErrorCode.INVALID_CONFIG,
        ),
        (ConsumerSettings, {"max_poll_records": True}, "max.poll.records True; say a whole", ErrorCode.INVALID_CONFIG),
        (
            ConsumerSettings,
            {"enable_auto_commit": "yes"},
            "enable.auto.commit 'yes'; say True",
            ErrorCode.INVALID_CONFIG,
        ),
        (ConsumerSettings, {"group": b"g"}, "group b'g'; say a text", ErrorCode.INVALID_CONFIG),
        (ConsumerSettings, {"client_rack": None}, "client.rack None; say a text", ErrorCode.INVALID_CONFIG),
        (ConsumerSettings, {"topics": "orders"}, "this takes several names", ErrorCode.INVALID_REQUEST),
        (
            ConsumerSettings,
            {"on_corrupt": "ignore"},
            "on_corrupt 'ignore'; it is raise or skip",
            ErrorCode.INVALID_CONFIG,
        ),
        (RangedFetchSettings, {"on_corrupt": "no"}, "on_corrupt 'no'; it is raise or skip", ErrorCode.INVALID_CONFIG),
        (RangedFetchSettings, {"isolation": "dirty"}, "isolation level 'dirty'; known are", ErrorCode.INVALID_REQUEST),
        (
            ConsumerSettings,
            {"group": "g", "partition_assignment_strategy": ("sticky",)},
            "partition.assignment.strategy 'sticky'; known are range, roundrobin",
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ),
        (ProducerSettings, {"linger_ms": 2**31}, "linger.ms 2147483648; at most 2147483647", ErrorCode.INVALID_CONFIG),
        (
            ConsumerSettings,
            {"heartbeat_interval_ms": 45_000},
            "heartbeat.interval.ms 45000; below session.timeout.ms 45000",
            ErrorCode.INVALID_CONFIG,
        ),
        (
            ConsumerSettings,
            {"group": "a", "group_id": "b"},
            "group and group_id are names of the same setting",
            ErrorCode.INVALID_CONFIG,
        ),
        (
            ClientSettings,
            {"bootstrap_servers": 7},
            "bootstrap.servers 7; say 'host:port', or",
            ErrorCode.INVALID_CONFIG,
        ),
        (
            ClientSettings,
            {"bootstrap_servers": {"bootstrap.servers": "a:1"}},
            "bootstrap.servers is a mapping; only the constructor",
            ErrorCode.INVALID_CONFIG,
        ),
        (ProducerSettings, {"linger_ms": 0.5}, "linger.ms 0.5; say a whole number", ErrorCode.INVALID_CONFIG),
        (ProducerSettings, {"acks": "some"}, "acks='some'; say all, 1 or 0", ErrorCode.INVALID_REQUIRED_ACKS),
        (
            ProducerSettings,
            {"acks": 1, "idempotent": True},
            "acks=1: an idempotent producer needs acks=all",
            ErrorCode.INVALID_REQUIRED_ACKS,
        ),
        (ProducerSettings, {"compression": "rar"}, "codec 'rar'; known are", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (ProducerSettings, {"compression": b"gzip"}, "codec b'gzip'; known", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (ProducerSettings, {"compression": 3}, "codec 3; known are", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (KeyedConsumerSettings, {**GROUP, "grace_ms": -1}, "grace_ms -1; at least 0", ErrorCode.INVALID_CONFIG),
        (ClientSettings, {"bootstrap_servers": "no port:"}, "bootstrap server 'no port:'", ErrorCode.INVALID_REQUEST),
        (ClientSettings, {"retry_backoff_ms": None}, "retry.backoff.ms None; say a whole", ErrorCode.INVALID_CONFIG),
    ],
)
def test_a_bad_setting_is_refused_by_its_kafka_name(
    kind: type[ClientSettings], setting: dict[str, Any], message: str, code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as refused:
        kind(**({"bootstrap_servers": SERVERS} | setting))
    assert refused.value.detail.startswith(message)
    assert refused.value.code is code


def test_a_text_stands_for_a_number_or_a_flag_as_in_a_file() -> None:
    settings = ConsumerSettings(
        ["a:1", "b:2"],
        max_poll_records=" 7",  # type: ignore[arg-type]
        enable_auto_commit="False",  # type: ignore[arg-type]
        group_id="g",
        isolation_level="read_committed",
    )
    assert (settings.servers, settings.max_poll_records, settings.enable_auto_commit) == ("a:1,b:2", 7, False)
    assert (settings.group, settings.group_id, settings.isolation_number) == ("g", None, 1)
    assert settings == ConsumerSettings(
        "a:1,b:2", max_poll_records=7, enable_auto_commit=False, group="g", isolation="read_committed"
    )


@pytest.mark.parametrize("setting", ["max_poll_records", "max_records_in_hand"])
def test_a_whole_number_of_numpy_is_a_number(setting: str) -> None:
    def made(value: Any) -> Any:
        settings: dict[str, Any] = {**GROUP, setting: value}
        return getattr(KeyedConsumerSettings(SERVERS, **settings), setting)

    assert (made(np.int32(7)), type(made(np.int32(7)))) == (7, int)
    for wrong in (np.int64(0), np.float64(7), np.array([7, 8])):
        with pytest.raises(KafkaError, match="max"):
            made(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_a_settings_value_is_frozen_and_goes_to_other_processes(kind: type[ClientSettings]) -> None:
    settings = kind(SERVERS, **KINDS[kind])
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(AttributeError):
        settings.client_id = "other"  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
def test_settings_for_the_cluster_of_another_client_share_all_but_the_name(kind: type[ClientSettings]) -> None:
    client = ClientSettings("a:1,b:2", client_id="job", request_timeout_ms=7, bootstrap_timeout_ms=8)
    settings = kind.on(client, **KINDS[kind])
    shared = {field.name for field in fields(ClientSettings)} - {"client_id"}
    assert all(getattr(settings, name) == getattr(client, name) for name in shared)
    assert settings.client_id == kind(SERVERS, **KINDS[kind]).client_id


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("module", [tailrace, aio])
def test_a_client_takes_the_keywords_of_its_settings_and_no_others(module: Any, name: str) -> None:
    client, kind = getattr(module, name), CLIENTS[name]
    assert issubclass(client, Configured)
    parameters = inspect.signature(client).parameters
    assert list(parameters) == list(inspect.signature(kind).parameters)
    assert parameters["client_id"].default == kind(SERVERS, **KINDS[kind]).client_id
    with pytest.raises(TypeError, match=f"^{name} has no setting 'fetch_minimum'"):
        client(SERVERS, **KINDS[kind], fetch_minimum=1)
    with pytest.raises(TypeError, match=f"^{name}: missing a required argument: 'bootstrap_servers'"):
        client(**KINDS[kind])
    with pytest.raises(TypeError, match=f"^{name}: too many positional arguments"):
        client(SERVERS, "orders", **KINDS[kind])
    client.of(kind(SERVERS, **KINDS[kind]))


def test_the_words_that_type_checkers_know_are_the_words_that_are_taken() -> None:
    for word in get_args(Compression):
        assert ProducerSettings(SERVERS, compression=word).compression == word
    assert {codec.name.lower() for codec in Codec} == {*get_args(Compression)}
    for reset in get_args(Reset):
        ConsumerSettings(SERVERS, auto_offset_reset=reset)
    for isolation in get_args(Isolation):
        ConsumerSettings(SERVERS, isolation=isolation)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("smallest", "say 'earliest'"),
        ("beginning", "say 'earliest'"),
        ("largest", "say 'latest'"),
        ("end", "say 'latest'"),
        ("error", "say 'none'"),
        ("first", "known are earliest, latest, none"),
    ],
)
def test_a_reset_in_the_words_of_librdkafka_names_kafkas_word(word: Any, hint: str) -> None:
    with pytest.raises(KafkaError, match=f"auto.offset.reset '{word}'; {hint}"):
        ConsumerSettings(SERVERS, auto_offset_reset=word)


def test_the_assignment_strategies_are_those_that_members_know() -> None:
    assert tuple(ASSIGNORS) == ASSIGNMENT_STRATEGIES


@pytest.mark.parametrize(
    ("client", "setting", "hint"),
    [
        ("KeyedConsumer", "workers", "it is an argument of KeyedConsumer.run()"),
        ("KeyedConsumer", "handler", "it is an argument of KeyedConsumer.run()"),
        ("KeyedConsumer", "value_deserializer", "did you mean 'decode'? It makes the handler's value"),
        ("KeyedConsumer", "enable_auto_commit", "done records are committed every auto_commit_interval_ms"),
        ("KeyedConsumer", "breaker_min_call", "did you mean 'breaker_min_calls'?"),
        ("RangedFetch", "group", "ranges are read without a group"),
        ("RangedFetch", "topics", "the partition and the offsets are arguments of fetch_range() and arrow()"),
        ("Producer", "group_id", "Consumer and KeyedConsumer have it"),
        ("Producer", "value_deserializer", "Consumer has it"),
        ("Admin", "linger_ms", "Producer has it"),
    ],
)
@pytest.mark.parametrize("face", [tailrace, aio], ids=lambda face: face.__name__)
def test_the_error_of_a_setting_of_another_client_names_its_place(
    face: Any, client: str, setting: str, hint: str
) -> None:
    with pytest.raises(TypeError) as caught:
        getattr(face, client)("127.0.0.1:9092", **{setting: 1})
    assert str(caught.value) == f"{client} has no setting {setting!r}; {hint}"
