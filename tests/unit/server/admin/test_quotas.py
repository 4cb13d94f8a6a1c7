"""Quotas of clients (48, 49; KIP-546) from frame to metadata log."""

from typing import Any

import pytest

from tailrace.metadata.deciding import quotas as deciding
from tailrace.metadata.image import EMPTY_IMAGE
from tailrace.metadata.records.quotas import QUOTAS
from tailrace.metadata.replay import apply_all
from tailrace.metadata.snapshot_image import records_of
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.configs import (
    AlterClientQuotasRequest,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    QuotaComponent,
    QuotaEntity,
    QuotaOperation,
)
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
FINE = (ErrorCode.NONE, None)
Parts = dict[str, str | None]


@pytest.fixture
def node() -> AdminPath:
    return AdminPath("/data", files=SimulatedDisk())


def altered(entity: Parts, **values: float | None) -> AlteredQuotas:
    return AlteredQuotas(
        entity=tuple(QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity.items()),
        ops=tuple(QuotaOperation(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()),
    )


def alter(
    node: AdminPath, *entries: AlteredQuotas, validate_only: bool = False, version: int = 1
) -> list[tuple[int, str | None]]:
    request = AlterClientQuotasRequest(entries=entries, validate_only=validate_only)
    return [(result.error_code, result.error_message) for result in node.send(request, version).response.entries]


def part(entity_type: str, match_type: int = SPECIFIED, match: str | None = None) -> QuotaComponent:
    return QuotaComponent(entity_type=entity_type, match_type=match_type, match=match)


def described(node: AdminPath, *components: QuotaComponent, strict: bool = False, version: int = 1) -> list[Any]:
    found = node.send(DescribeClientQuotasRequest(components=components, strict=strict), version).response
    assert (found.error_code, found.error_message) == FINE
    return [
        (
            {component.entity_type: component.entity_name for component in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in found.entries
    ]


ALICE: Parts = {"user": "alice"}
APP_OF_ALICE: Parts = {"user": "alice", "client-id": "app"}
ANY_APP_OF_ALICE: Parts = {"user": "alice", "client-id": None}


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_described_changed_and_removed(node: AdminPath, version: int) -> None:
    assert described(node, version=version) == []
    entries = (altered(ALICE, producer_byte_rate=1024.0), altered({"ip": None}, connection_creation_rate=5.0))
    assert alter(node, *entries, version=version) == [FINE, FINE]
    assert alter(node, altered(ALICE, producer_byte_rate=2048.0, request_percentage=12.5)) == [FINE]
    assert described(node, version=version) == [
        (ALICE, {"producer_byte_rate": 2048.0, "request_percentage": 12.5}),
        ({"ip": None}, {"connection_creation_rate": 5.0}),
    ]
    assert alter(node, altered(ALICE, producer_byte_rate=None, consumer_byte_rate=None, anything=None)) == [FINE]
    assert described(node, part("user")) == [(ALICE, {"request_percentage": 12.5})]


def test_a_filter_finds_entities_by_name_default_and_type(node: AdminPath) -> None:
    entities: tuple[Parts, ...] = (ALICE, APP_OF_ALICE, ANY_APP_OF_ALICE, {"user": None}, {"client-id": "app"})
    for entity in entities:
        alter(node, altered(entity, producer_byte_rate=1.0))

    def found(*components: QuotaComponent, strict: bool = False) -> list[Parts]:
        return [entity for entity, _ in described(node, *components, strict=strict)]

    assert found(part("user", EXACT, "alice")) == [ALICE, APP_OF_ALICE, ANY_APP_OF_ALICE]
    assert found(part("user", EXACT, "alice"), strict=True) == [ALICE]
    assert found(part("user", DEFAULT)) == [{"user": None}]
    assert found(part("user"), part("client-id", DEFAULT)) == [ANY_APP_OF_ALICE]
    assert found(part("client-id"), strict=True) == [{"client-id": "app"}]
    assert found(part("user", EXACT, "bob")) == []
    assert found(strict=True) == []


def test_a_snapshot_states_the_quotas(node: AdminPath) -> None:
    alter(node, altered(ANY_APP_OF_ALICE, producer_byte_rate=1.0, consumer_byte_rate=2.0), altered(ALICE))
    alter(node, altered(ANY_APP_OF_ALICE, consumer_byte_rate=None))
    image = node.machine.image
    loaded, _ = apply_all(EMPTY_IMAGE, records_of(image))
    entity = (("user", "alice"), ("client-id", None))
    assert dict(QUOTAS.of(loaded)) == dict(QUOTAS.of(image)) == {(entity, "producer_byte_rate"): 1.0}


def test_a_tried_change_changes_nothing(node: AdminPath) -> None:
    entries = (altered(ALICE, producer_byte_rate=1.0), altered(ALICE, producer_byte_rate=-1.0))
    assert [code for code, _ in alter(node, *entries, validate_only=True)] == [ErrorCode.INVALID_REQUEST]
    assert alter(node, entries[0], validate_only=True) == [FINE]
    assert described(node) == []


@pytest.mark.parametrize(
    ("entity", "key", "value", "text"),
    [
        ({}, "producer_byte_rate", 1.0, "Invalid empty client quota entity"),
        ({"group": "g"}, "producer_byte_rate", 1.0, "Unhandled client quota entity type: group"),
        ({"user": ""}, "producer_byte_rate", 1.0, "Empty user not supported"),
        ({"user": "n" * 1_001}, "producer_byte_rate", 1.0, "a user with quotas has at most 1000 characters"),
        ({"user": "a", "ip": "::1"}, "producer_byte_rate", 1.0, "Invalid quota entity combination"),
        ({"ip": "nowhere"}, "connection_creation_rate", 1.0, "nowhere is not a valid IP or resolvable host."),
        ({"ip": "::1"}, "producer_byte_rate", 1.0, "Invalid configuration key producer_byte_rate"),
        (ALICE, "connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        (ALICE, "speed", 1.0, "Invalid configuration key speed"),
        (ALICE, "producer_byte_rate", 0.0, "Quota producer_byte_rate must be greater than 0"),
        (ALICE, "request_percentage", -0.5, "Quota request_percentage must be greater than 0"),
        (ALICE, "consumer_byte_rate", 1.5, "consumer_byte_rate cannot be a fractional value."),
        (ALICE, "consumer_byte_rate", 1e19, "Proposed value for consumer_byte_rate is too large for a LONG."),
        ({"ip": None}, "connection_creation_rate", 2.0**31, "too large for an INT."),
        (ALICE, "request_percentage", float("nan"), "request_percentage must be a number"),
        (ALICE, "controller_mutation_rate", float("inf"), "controller_mutation_rate must be a number"),
    ],
)
def test_an_entity_or_value_that_kafka_refuses_is_refused_alone(
    node: AdminPath, entity: Parts, key: str, value: float, text: str
) -> None:
    refused, fine = alter(node, altered(entity, **{key: value}), altered({"user": "bob"}, producer_byte_rate=1.0))
    assert (refused[0], fine) == (ErrorCode.INVALID_REQUEST, FINE)
    assert text in (refused[1] or "")
    assert [entity for entity, _ in described(node)] == [{"user": "bob"}]


def test_an_entity_that_fails_in_a_key_changes_no_key(node: AdminPath) -> None:
    entry = altered(ALICE, producer_byte_rate=1.0, consumer_byte_rate=0.5)
    assert alter(node, entry)[0][0] == ErrorCode.INVALID_REQUEST
    doubled = AlteredQuotas(entity=entry.entity, ops=(entry.ops[0], entry.ops[0]))
    assert alter(node, doubled)[0][0] == ErrorCode.INVALID_REQUEST
    assert described(node) == []


def test_a_part_that_comes_twice_counts_once_by_its_last_name(node: AdminPath) -> None:
    names = tuple(QuotaEntity(entity_type="user", entity_name=name) for name in ("alice", None))
    rate = QuotaOperation(key="producer_byte_rate", value=1.0, remove=False)
    assert alter(node, AlteredQuotas(entity=names, ops=(rate,))) == [FINE]
    assert described(node) == [({"user": None}, {"producer_byte_rate": 1.0})]


def test_a_cluster_has_a_limit_of_quotas(node: AdminPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "MOST_QUOTAS", 2)
    assert alter(node, altered(ALICE, producer_byte_rate=1.0, consumer_byte_rate=1.0)) == [FINE]
    assert alter(node, altered({"user": "bob"}, producer_byte_rate=1.0))[0][0] == ErrorCode.POLICY_VIOLATION
    swapped = altered(ALICE, producer_byte_rate=None, request_percentage=1.0, consumer_byte_rate=2.0)
    assert alter(node, swapped) == [FINE]


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ((part(""),), ErrorCode.INVALID_REQUEST),
        ((part("user"), part("user")), ErrorCode.INVALID_REQUEST),
        ((part("group"),), ErrorCode.UNSUPPORTED_VERSION),
        ((part("user", 3),), ErrorCode.INVALID_REQUEST),
        ((part("user", EXACT, None),), ErrorCode.INVALID_REQUEST),
        ((part("user", DEFAULT, "alice"),), ErrorCode.INVALID_REQUEST),
        ((part("user", SPECIFIED, "alice"),), ErrorCode.INVALID_REQUEST),
        ((part("ip"), part("user")), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_filter_that_kafka_refuses_is_refused(
    node: AdminPath, components: tuple[QuotaComponent, ...], code: ErrorCode
) -> None:
    found = node.send(DescribeClientQuotasRequest(components=components, strict=False), 1).response
    assert (found.error_code, found.entries) == (code, None)
    assert found.error_message
