"""Texts about names that a package or a client lacks: the name that takes their place, or the nearest name."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from tailrace.model.settings import nearest

_CLIENTS: Final = ("Admin", "Consumer", "KeyedConsumer", "Producer", "RangedFetch")

_BLOCKING: Final = {
    **{f"Kafka{name}": f"the blocking client is tailrace.{name}" for name in ("Consumer", "Producer", "Admin")},
    **dict.fromkeys(("KafkaAdminClient", "AdminClient"), "the blocking client is tailrace.Admin"),
    "DeserializingConsumer": "tailrace.Consumer has key_deserializer and value_deserializer",
    "SerializingProducer": "tailrace.Producer has key_serializer and value_serializer",
    "ShareConsumer": "tailrace.KeyedConsumer shares partitions by key",
}
"""Blocking clients of other packages."""

_ASYNCIO: Final = {
    **{f"{mark}{name}": f"the asyncio client is tailrace.aio.{name}" for name in _CLIENTS for mark in ("Async", "Aio")},
    **{f"AIOKafka{name}": f"the asyncio client is tailrace.aio.{name}" for name in ("Consumer", "Producer")},
    **{f"AIO{name}": f"the asyncio client is tailrace.aio.{name}" for name in _CLIENTS},
    "AIOKafkaAdminClient": "the asyncio client is tailrace.aio.Admin",
}
"""Asyncio clients, by names of other packages, and by names that the classes have inside of Tailrace."""

_VALUES: Final = {
    "Cluster": "it is tailrace.testing.Cluster",
    "KafkaException": "the error of every call is tailrace.KafkaError",
    "KafkaTimeoutError": "a time-out is a tailrace.KafkaError with the code REQUEST_TIMED_OUT, or a TimeoutError",
    "KafkaConnectionError": "it is a tailrace.KafkaError with the code NETWORK_EXCEPTION",
    "Message": "a record is a tailrace.ConsumerRecord",
    "OffsetAndTimestamp": "offsets_for_times() returns the offsets",
    "TopicConfig": "the settings of a topic are configs={...} of tailrace.NewTopic",
}
"""Values and errors of other packages."""

_ELSEWHERE: Final[Mapping[str, str]] = {**_BLOCKING, **_ASYNCIO, **_VALUES}


def absence(package: str, name: str, known: Iterable[str], values: Iterable[str] = ()) -> str:
    """The text about a name that the package lacks. `values`: names that are imported from `tailrace` instead."""
    text = f"{package} has no name {name!r}"
    if name in values:
        return f"{text}; it is tailrace.{name}"
    near = nearest(name, known)
    hint = _ELSEWHERE.get(name) or (f"did you mean {near!r}?" if near else "")
    return f"{text}; {hint}" if hint else text


_SETTINGS: Final = {
    "allow_auto_create_topics": "a consumer creates no topics",
    "api_version": "leave it out: the versions of the protocol come from the server",
    "auto_offset_store": "a record counts as processed at the next poll, or the next step of a loop",
    "check_crcs": "the checksums of all batches are checked",
    "connections_max_idle_ms": "leave it out: a connection that the server has closed is made again",
    "concurrency": "it is an argument of KeyedConsumer.run()",
    "consumer_timeout_ms": 'give until="end" to a consumer without a group, or a timeout to poll()',
    "enable_auto_offset_store": "a record counts as processed at the next poll, or the next step of a loop",
    "enable_partition_eof": 'give until="end" to a consumer without a group',
    "error_cb": "the property `trouble` has the present fault, and the logger tailrace.client warns of it",
    "interceptor_classes": "a function around send() or poll() does the same",
    "logger": "the loggers are tailrace.client and tailrace.client.corrupt",
    "loop": "leave it out: an asyncio client has the loop that runs",
    "max_batch_size": "did you mean 'batch_size'?",
    "max_in_flight_requests_per_connection": "leave it out: order is kept by idempotent=True, the default",
    "message_timeout_ms": "did you mean 'delivery_timeout_ms'?",
    "metric_reporters": "metrics() returns the numbers",
    "on_delivery": "send() returns a future, which takes callbacks by add_done_callback",
    "queue_buffering_max_ms": "did you mean 'linger_ms'?",
    "rebalance_timeout_ms": "max_poll_interval_ms is the time-out of a rebalance too",
    "retries": "a record is tried again for delivery_timeout_ms, another call for default_api_timeout_ms",
    "sasl_kerberos_service_name": "Kerberos is not built in; see sasl_mechanism",
    "sasl_oauth_token_provider": "OAUTHBEARER is not built in; see sasl_mechanism",
    "ssl_check_hostname": "say ssl_endpoint_identification_algorithm='' for a server under another name",
    "ssl_context": "say ssl_truststore_location (ssl_cafile), and for a certificate ssl_keystore_location",
    "ssl_keystore_password": "a PEM file has no password of its own; ssl_key_password is the password of the key",
    "ssl_truststore_password": "a PEM file with certificates has no password",
}
"""Settings of other clients that clients of Tailrace do not have, and the way to the same end."""

_BY_RUN: Final = "it is an argument of KeyedConsumer.run()"
_BY_RANGE: Final = "the partition and the offsets are arguments of fetch_range() and arrow()"

_SETTINGS_OF_A_CLIENT: Final = {
    "KeyedConsumer": {
        **dict.fromkeys(("concurrency", "handler", "max_workers", "threads", "workers"), _BY_RUN),
        **dict.fromkeys(("value_deserializer", "deserializer"), "did you mean 'decode'? It makes the handler's value"),
        "key_deserializer": "the handler gets the bytes of the key",
        "enable_auto_commit": "done records are committed every auto_commit_interval_ms",
        "allow_individual_commit": "did you mean 'slots'? Members share each partition by key then",
        "until": "run() ends by stop()",
    },
    "RangedFetch": {
        **dict.fromkeys(("topics", "topic", "partition", "start", "end", "until"), _BY_RANGE),
        **dict.fromkeys(("group", "group_id"), "ranges are read without a group"),
        **dict.fromkeys(("key_deserializer", "value_deserializer"), "records come as bytes"),
    },
}
"""Settings that a client of Tailrace lacks, by the client, and the way to the same end."""


def unknown_settings(client: str, names: Iterable[str], settings: Any) -> str:
    """The text about names that are no settings of this client, with the nearest setting of each name."""
    known = [setting.name for setting in fields(settings)]
    elsewhere = {**_SETTINGS, **_SETTINGS_OF_A_CLIENT.get(client, {})}
    texts = []
    for name in names:
        near = nearest(name, known)
        meant = elsewhere.get(name) or _owner(name) or (f"did you mean {near!r}?" if near else "")
        texts.append(f"{name!r}; {meant}" if meant else f"{name!r}")
    return f"{client} has no setting {', nor '.join(texts)}"


def _owner(name: str) -> str:
    """The text about a setting that other clients have; empty if no client has the setting."""
    from tailrace.client import reader_settings, writer_settings  # not at the top: a good name needs none

    owners = {
        "Producer": writer_settings.ProducerSettings,
        "Consumer": reader_settings.ConsumerSettings,
        "KeyedConsumer": reader_settings.KeyedConsumerSettings,
        "RangedFetch": reader_settings.RangedFetchSettings,
    }
    having = [owner for owner, settings in owners.items() if name in {setting.name for setting in fields(settings)}]
    return f"{' and '.join(having)} {'have' if len(having) > 1 else 'has'} it" if having else ""
