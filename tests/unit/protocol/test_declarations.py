"""Our declarations against Kafka's own: the JSON definitions that kafka-python carries in its package."""

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import pytest

from tailrace.protocol.declaration import (
    BOOL,
    REQUIRED,
    Array,
    Blob,
    Field,
    Fixed,
    Nested,
    RecordBytes,
    Schema,
    Text,
    Versions,
    WireType,
    schema_of,
)
from tailrace.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tailrace.protocol.registry import APIS, OWN_APIS

NOT_IN_KAFKA_PYTHON = (38, 39, 40, 41, 52, 53, 54, 56, 58, 59, 62, 63, 64, 67, 68, 69, 70, 73, 80, 81, 82)
"""Delegation tokens, messages between nodes, UnregisterBroker and KIP-848's requests; compared with kio alone
(tests/properties/protocol/test_foreign_codecs.py)."""
FIRST_TAG_OF_OURS = 10_000

MESSAGES = [
    cls
    for api in APIS.values()
    if api.key not in NOT_IN_KAFKA_PYTHON and api.key not in OWN_APIS
    for cls in (api.request, api.response)
]
CONSUMER_PROTOCOL = [ConsumerProtocolSubscription, ConsumerProtocolAssignment]

NEWER_THAN_OURS = {
    f"{api}{kind}" for api in ("ListOffsets", "InitProducerId", "DescribeLogDirs") for kind in ("Request", "Response")
}
"""Kafka has a version more: ListOffsets v11 (tiered storage), InitProducerId v6 (two-phase commit), DescribeLogDirs v5
(directories that take no new partitions)."""

WIRE_TYPES: Mapping[str, WireType] = {
    "int8": Fixed("b", 1),
    "int16": Fixed("h", 2),
    "int32": Fixed("i", 4),
    "int64": Fixed("q", 8),
    "uint16": Fixed("H", 2),
    "float64": Fixed("d", 8),
    "uuid": Fixed("16s", 16),
    "bool": BOOL,
    "string": Text(),
    "bytes": Blob(),
    "records": RecordBytes(),
}

Definition = dict[str, Any]


def kafka_definition(name: str) -> Definition:
    text = (files("kafka.protocol.schemas") / "resources" / f"{name}.json").read_text()
    definition: Definition = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return definition


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def within(versions: Versions, served: Versions) -> list[int]:
    return [version for version in range(served.first, served.last + 1) if versions.has(version)]


@pytest.mark.parametrize("cls", MESSAGES + CONSUMER_PROTOCOL, ids=lambda cls: cls.__name__)
def test_fields_are_kafkas(cls: type) -> None:
    definition, schema = kafka_definition(cls.__name__), schema_of(cls)
    shared = {part["name"]: part["fields"] for part in definition.get("commonStructs", ())}
    compare_fields(schema, definition["fields"], schema.versions, schema.versions, shared)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_key_and_versions_are_kafkas(cls: type) -> None:
    definition, schema = kafka_definition(cls.__name__), schema_of(cls)
    assert schema.api_key == definition["apiKey"]
    newest = 1 if cls.__name__ in NEWER_THAN_OURS else 0
    valid = Versions.parse(definition["validVersions"])
    assert schema.versions == Versions(valid.first, valid.last - newest)
    assert schema.flexible == Versions.parse(definition["flexibleVersions"])


def compare_fields(
    schema: Schema, definitions: list[Definition], served: Versions, there: Versions, shared: Mapping[str, Any]
) -> None:
    """`there` are the versions in which the struct itself can occur."""
    definitions = [definition for definition in definitions if within(Versions.parse(definition["versions"]), served)]
    fields = [field for field in schema.fields if field.tag is None or field.tag < FIRST_TAG_OF_OURS]
    assert [field.name for field in fields] == [snake_case(definition["name"]) for definition in definitions]
    for field, definition in zip(fields, definitions, strict=True):
        where = f"{schema.name}.{field.name}"
        versions = Versions.parse(definition["versions"])
        common = [version for version in within(versions, served) if there.has(version)]
        assert [version for version in within(field.versions, served) if there.has(version)] == common, where
        nullable = Versions.parse(definition.get("nullableVersions", "none"))
        for version in common:
            assert field.nullable.has(version) == nullable.has(version), f"{where} v{version}"
        assert field.tag == definition.get("tag"), where
        compare_type(field, definition, served, shared)
        if field.default is not REQUIRED and not isinstance(field.type, (Array, Nested)):
            assert field.default == kafka_default(definition), where
        assert field.default is not REQUIRED or definition.get("default") is None, where


def compare_type(field: Field, definition: Definition, served: Versions, shared: Mapping[str, Any]) -> None:
    name, kind = definition["type"], field.type
    if name.startswith("[]"):
        assert isinstance(kind, Array)
        name, kind = name[2:], kind.element
    if isinstance(kind, Nested):
        compare_fields(kind.schema, definition.get("fields") or shared[name], served, field.versions, shared)
    else:
        assert kind == WIRE_TYPES[name], field.name


def kafka_default(definition: Definition) -> object:
    stated = definition.get("default")
    if stated == "null" or definition["type"] == "records":
        return None
    match definition["type"]:
        case "string":
            return stated or ""
        case "bytes":
            return b""
        case "uuid":
            return bytes(16)
        case "bool":
            return str(stated).lower() == "true"
        case _:
            return int(str(stated or 0), 0)
