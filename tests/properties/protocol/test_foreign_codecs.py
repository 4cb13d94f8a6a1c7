"""Every served API and version, both ways, against two codecs that others wrote: kio and kafka-python.

Values come from our declarations; each is turned into the foreign library's own object and compared with what that
library reads from our bytes, and our reading of its bytes is compared with the value.
"""

import dataclasses
import datetime
import functools
import io
import types
import typing
import uuid
from typing import Any

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import kio.index
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import metadata as kafka_consumer_protocol
from kafka.protocol.schemas.fields.codecs import BitField
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from budgets import examples
from tailrace.protocol.declaration import Field, schema_of
from tailrace.protocol.messages import envelope, log_dirs, quorum, registrations, replicas, transactions
from tailrace.protocol.messages.api_versions import ApiVersionsResponse
from tailrace.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tailrace.protocol.registry import APIS, OWN_APIS
from tailrace.protocol.schema import decode, encode_bytes
from tailrace.protocol.source import Layout
from testkit.records.strategies import messages

RAFT = (
    quorum.VoteRequest,
    quorum.VoteResponse,
    quorum.BeginQuorumEpochRequest,
    quorum.BeginQuorumEpochResponse,
    quorum.EndQuorumEpochRequest,
    quorum.EndQuorumEpochResponse,
    quorum.DescribeQuorumRequest,
    quorum.DescribeQuorumResponse,
    quorum.FetchSnapshotRequest,
    quorum.FetchSnapshotResponse,
    quorum.AddRaftVoterRequest,
    quorum.AddRaftVoterResponse,
    quorum.RemoveRaftVoterRequest,
    quorum.RemoveRaftVoterResponse,
    quorum.UpdateRaftVoterRequest,
    quorum.UpdateRaftVoterResponse,
)
"""Messages between replicas of the metadata log; compared whether this node serves them or not."""

CONTROLLER = (
    replicas.AlterPartitionRequest,
    replicas.AlterPartitionResponse,
    envelope.EnvelopeRequest,
    envelope.EnvelopeResponse,
    registrations.BrokerRegistrationRequest,
    registrations.BrokerRegistrationResponse,
    registrations.BrokerHeartbeatRequest,
    registrations.BrokerHeartbeatResponse,
    transactions.AllocateProducerIdsRequest,
    transactions.AllocateProducerIdsResponse,
    registrations.ControllerRegistrationRequest,
    registrations.ControllerRegistrationResponse,
    log_dirs.AssignReplicasToDirsRequest,
    log_dirs.AssignReplicasToDirsResponse,
)
"""Messages of brokers and controllers to the active controller; compared likewise."""

CONSUMER_PROTOCOL = (ConsumerProtocolSubscription, ConsumerProtocolAssignment)

CASES = [
    (cls, version)
    for api in APIS.values()
    if api.key not in OWN_APIS
    for cls in (api.request, api.response)
    for version in range(api.min_version, api.max_version + 1)
]
CASES += [
    (cls, version)
    for cls in (*RAFT, *CONTROLLER)
    if schema_of(cls).api_key not in APIS
    for version in range(schema_of(cls).versions.first, schema_of(cls).versions.last + 1)
]
CASES += [(cls, version) for cls in CONSUMER_PROTOCOL for version in range(4)]

EXAMPLES = examples(2)


def case_id(part: Any) -> str:
    return part.__name__ if isinstance(part, type) else f"v{part}"


def every_case(test: Any) -> Any:
    return pytest.mark.parametrize(("cls", "version"), CASES, ids=case_id)(test)


quick = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)


# kio keeps times and error codes in types of its own, which cannot hold every number.
_TIMES = st.just(-1) | st.integers(0, 4_000_000_000_000)
_TOKEN_PERIODS = ("max_lifetime_ms", "renew_period_ms", "expiry_time_period_ms")
_TOKEN_TIMES = frozenset(f"{name}_timestamp{unit}" for name in ("issue", "expiry", "max") for unit in ("", "_ms"))
_KNOWN_ERRORS = st.sampled_from([code.value for code in KioErrorCode])


@functools.cache
def kio_class(cls: type, version: int) -> Any:
    if cls in CONSUMER_PROTOCOL:
        is_subscription = cls is ConsumerProtocolSubscription
        snake = "consumer_protocol_subscription" if is_subscription else "consumer_protocol_assignment"
        module = __import__(f"kio.schema.{snake}.v{version}.data", fromlist=["*"])
        return getattr(module, cls.__name__)
    load = kio.index.load_request_schema if cls.__name__.endswith("Request") else kio.index.load_response_schema
    return load(schema_of(cls).api_key, version)


FIRST_TAG_OF_OURS = 10_000


def is_ours(field: Field) -> bool:
    """Whether it is an extension, which no foreign codec knows."""
    return field.tag is not None and field.tag >= FIRST_TAG_OF_OURS


def narrowed_for_kio(field: Field) -> st.SearchStrategy[Any] | None:
    if is_ours(field):
        return st.just(field.default)
    if field.name in ("log_append_time_ms", "retention_time_ms", "session_lifetime_ms", *_TOKEN_PERIODS):
        return _TIMES
    if field.name == "transaction_start_time_ms" or field.name in _TOKEN_TIMES:
        return st.integers(0, 4_000_000_000_000)  # it knows no -1 for none there
    if field.name.endswith("error_code"):
        return _KNOWN_ERRORS
    if field.name == "unaligned_records":
        return st.binary(max_size=40)  # never null in Kafka's definition
    return None


def to_kio(value: Any, cls: type, version: int, flexible: bool) -> Any:
    """The same value as kio's object. Field names are compared, up to the unit that kio leaves out."""
    hints = kio_hints(cls)
    layout = Layout(schema_of(type(value)), version, flexible)
    ours = [field for field in schema_of(type(value)).fields if field not in layout.absent and not is_ours(field)]
    assert [field.name.removesuffix("_ms") for field in ours] == [
        name.removesuffix("_ms").rstrip("_") for name in hints
    ]
    converted = {}
    for field, (name, (hint, metadata)) in zip(ours, hints.items(), strict=True):
        converted[name] = to_kio_value(getattr(value, field.name), hint, metadata.get("kafka_type"), version, flexible)
    return cls(**converted)


@functools.cache
def kio_hints(cls: type) -> dict[str, tuple[Any, Any]]:
    hints = typing.get_type_hints(cls)
    return {field.name: (hints[field.name], field.metadata) for field in dataclasses.fields(cls)}


def to_kio_value(value: Any, hint: Any, kind: str | None, version: int, flexible: bool) -> Any:
    if value is None:
        return None
    if isinstance(value, tuple):
        element = typing.get_args(without_none(hint))[0]
        return tuple(to_kio_value(item, element, kind, version, flexible) for item in value)
    match kind:
        case "uuid":
            return uuid.UUID(bytes=value) if any(value) else None
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=value)
        case "datetime_i64":
            return None if value == -1 else datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
        case "error_code":
            return KioErrorCode(value)
        case None:
            return to_kio(value, without_none(hint), version, flexible)
        case _:
            return value


def without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint


@every_case
def test_kio_reads_what_we_write_and_we_read_what_kio_writes(cls: type, version: int) -> None:
    foreign = kio_class(cls, version)
    read, write = entity_reader(foreign), entity_writer(foreign)
    flexible = schema_of(cls).flexible.has(version)

    @quick
    @given(messages(cls, version, narrowed_for_kio))
    def both_ways(value: Any) -> None:
        expected = to_kio(value, foreign, version, flexible)
        ours = encode_bytes(value, version)
        decoded, size = read(ours, 0)
        assert (decoded, size) == (expected, len(ours))
        with io.BytesIO() as theirs:
            write(theirs, expected)
            assert decode(cls, version, theirs.getvalue()) == value

    both_ways()


NOT_ASKED_FOR = -(1 << 31)
KAFKA_PYTHON_MODULES = (
    kafka.protocol.admin,
    kafka.protocol.consumer,
    kafka.protocol.metadata,
    kafka.protocol.producer,
    kafka.protocol.sasl,
)


def kafka_python_class(cls: type) -> Any:
    if cls in CONSUMER_PROTOCOL:
        return getattr(kafka_consumer_protocol, cls.__name__)
    return next(getattr(module, cls.__name__) for module in KAFKA_PYTHON_MODULES if hasattr(module, cls.__name__))


def narrowed_for_kafka_python(cls: type) -> Any:
    def narrowed(field: Field) -> st.SearchStrategy[Any] | None:
        if is_ours(field):
            return st.just(field.default)
        if cls is ApiVersionsResponse and field.name == "error_code":
            return st.just(0)  # it reads any other answer as v0, as KIP-511 says of error 35
        return None

    return narrowed


def to_kafka_python(value: Any, cls: Any, version: int) -> Any:
    """The same value as kafka-python's object, without absent fields and without tagged fields at their defaults."""
    flexible = cls._flexible_versions is not None and cls.flexible_version_q(version)
    return to_kafka_python_part(value, cls, version, flexible)


def to_kafka_python_part(value: Any, cls: Any, version: int, flexible: bool) -> Any:
    layout = Layout(schema_of(type(value)), version, flexible)
    converted = {}
    for field in schema_of(type(value)).fields:
        item = getattr(value, field.name)
        if field in layout.absent or (field.tag is not None and item == field.default):
            continue
        # It renames the fields of authorized operations, and reads them as a set of bits.
        theirs = cls.fields.get(field.name) or cls.fields["authorized_operations"]
        converted[theirs.name] = to_kafka_python_value(item, theirs, version, flexible)
    return cls(version=version, **converted)


def to_kafka_python_value(item: Any, theirs: Any, version: int, flexible: bool) -> Any:
    if item is None:
        return None
    if theirs.is_struct_array():
        return [to_kafka_python_part(part, theirs.data_class, version, flexible) for part in item]
    if theirs.is_struct():
        return to_kafka_python_part(item, theirs.data_class, version, flexible)
    match theirs.type_str:
        case "uuid":
            return uuid.UUID(bytes=item) if any(item) else None
        case "bitfield":
            return None if item == NOT_ASKED_FOR else BitField.from_32_bit_field(item)
    return list(item) if isinstance(item, tuple) else item


UNKNOWN_TO_KAFKA_PYTHON = (38, 39, 40, 41, 52, 53, 54, 56, 58, 59, 62, 63, 64, 67, 68, 69, 70, 73, 80, 81, 82)
"""Tokens, KIP-848's requests, UnregisterBroker, and what only nodes say to each other: kio alone is the oracle."""


@pytest.mark.parametrize(
    ("cls", "version"),
    [case for case in CASES if schema_of(case[0]).api_key not in UNKNOWN_TO_KAFKA_PYTHON],
    ids=case_id,
)
def test_kafka_python_reads_what_we_write_and_we_read_what_it_writes(cls: type, version: int) -> None:
    foreign = kafka_python_class(cls)
    options = {"header": False} if cls in CONSUMER_PROTOCOL else {}

    @quick
    @given(messages(cls, version, narrowed_for_kafka_python(cls)))
    def both_ways(value: Any) -> None:
        expected = to_kafka_python(value, foreign, version)
        theirs = expected.encode(version=version, **options)
        assert decode(cls, version, theirs) == value
        decoded = foreign.decode(encode_bytes(value, version), version=version, **options)
        assert_same_fields(decoded, expected, version)

    both_ways()


def assert_same_fields(left: Any, right: Any, version: int) -> None:
    """Compares field by field, because kafka-python's own equality looks at fields that the version lacks."""
    for name, field in right.fields.items():
        if not field.for_version_q(version):
            continue
        ours, theirs = getattr(left, name), getattr(right, name)
        if field.is_struct_array() and theirs is not None:
            for our_value, other in zip(ours, theirs, strict=True):
                assert_same_fields(our_value, other, version)
        elif field.is_struct() and theirs is not None:
            assert_same_fields(ours, theirs, version)
        else:
            assert ours == theirs, name
