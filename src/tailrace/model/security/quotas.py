"""Quotas of clients: the entities that have quotas, the keys, and the order in which quotas win (KIP-13, 55, 546).

A quota is a value under a key of an entity. An entity is a user, a client id, a client id of a user, or an address; a
name of None is the default of its type. Names, codes and texts are Kafka's; the limits of names and numbers are this
cluster's.
"""

import math
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_INTEGRAL: Final[Mapping[str, tuple[str, int]]] = {
    PRODUCER_BYTE_RATE: ("a LONG", 2**63 - 1),
    CONSUMER_BYTE_RATE: ("a LONG", 2**63 - 1),
    CONNECTION_CREATION_RATE: ("an INT", 2**31 - 1),
}
"""The keys whose values are whole numbers, and the largest value."""
CLIENT_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
"""The keys of users and client ids."""
IP_KEYS: Final = (CONNECTION_CREATION_RATE,)

MOST_QUOTAS: Final = 10_000
"""The most quotas of a cluster."""
LONGEST_NAME: Final = 1_000
"""The most characters of a name in an entity."""
_EPSILON: Final = 1e-6

EntityParts = tuple[tuple[str, str | None], ...]
"""An entity: types with their names, in the order of ENTITY_TYPES. None is the default of its type."""


def entity_of(parts: Mapping[str, str | None]) -> EntityParts:
    """The entity of these parts: valid types in order, unknown types behind them."""
    known = [(kind, parts[kind]) for kind in ENTITY_TYPES if kind in parts]
    return (*known, *(part for part in parts.items() if part[0] not in ENTITY_TYPES))


def describe(entity: EntityParts) -> str:
    """The entity in words, such as `user alice, default client-id`."""
    return ", ".join(f"default {kind}" if name is None else f"{kind} {name}" for kind, name in entity)


def check_entity(entity: EntityParts) -> None:
    """Raises KafkaError INVALID_REQUEST for an entity that has no quotas in Kafka, or whose name is too long."""
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in ENTITY_TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind[:LONGEST_NAME]}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
        if name is not None and len(name) > LONGEST_NAME:
            raise _invalid(f"a {kind} with quotas has at most {LONGEST_NAME} characters")
    kinds = dict(entity)
    if IP in kinds:
        if len(kinds) > 1:
            raise _invalid("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
        if kinds[IP] is not None and normal_address(kinds[IP] or "") is None:
            raise _invalid(f"{kinds[IP]} is not a valid IP or resolvable host.")


def check_value(entity: EntityParts, key: str, value: float) -> None:
    """Raises KafkaError INVALID_REQUEST for a key that this entity does not have, or a value out of range."""
    if key not in (IP_KEYS if entity[0][0] == IP else CLIENT_KEYS):
        raise _invalid(f"Invalid configuration key {key[:LONGEST_NAME]}")
    if not math.isfinite(value):
        raise _invalid(f"{key} must be a number")
    if value <= 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    if key in _INTEGRAL:
        kind, most = _INTEGRAL[key]
        if value > most:
            raise _invalid(f"Proposed value for {key} is too large for {kind}.")
        if value % 1 > _EPSILON:
            raise _invalid(f"{key} cannot be a fractional value.")


def _invalid(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, detail)


def normal_address(text: str) -> str | None:
    """The address in the form by which connections are compared; None for text that is no address. An IPv4 address in
    an IPv6 address is the IPv4 address."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(address if mapped is None else mapped)


class EntityFilter(NamedTuple):
    """The entities that DescribeClientQuotas asks for: of each named type, with that name or with any name."""

    exact: Mapping[str, str | None]
    """Types with the name to match; None matches the default."""
    any_name: frozenset[str] = frozenset()
    """Types of which every entity matches."""
    is_strict: bool = False
    """Whether an entity with further types does not match."""

    def matches(self, entity: EntityParts) -> bool:
        """Whether the entity matches."""
        parts = dict(entity)
        if self.is_strict and len(parts) != len(self.exact) + len(self.any_name):
            return False
        return all(kind in parts and parts[kind] == name for kind, name in self.exact.items()) and all(
            kind in parts for kind in self.any_name
        )


def _pairs(user: str | None, client_id: str) -> tuple[EntityParts, EntityParts]:
    """The client id of this user, and the default client id of this user."""
    return ((USER, user), (CLIENT_ID, client_id)), ((USER, user), (CLIENT_ID, None))


class QuotaMatch(NamedTuple):
    """The quota of a client, and the clients that share its count."""

    user: str
    """Empty: the clients of all users share the count."""
    client_id: str
    """Empty: all client ids of the user share the count."""
    limit: float


class QuotaRules:
    """The quotas of one key, by entity: finds the quota of a client."""

    def __init__(self, limits: Iterable[tuple[EntityParts, float]]) -> None:
        self._limits = dict(limits)

    def __bool__(self) -> bool:
        return bool(self._limits)

    def find(self, user: str, client_id: str) -> QuotaMatch | None:
        """The quota of a client, by Kafka's order of precedence; None: the client has no quota.

        A client without a client id has the quotas of its user alone.
        """
        limits = self._limits
        both = (user, client_id)
        if client_id:
            for entity in _pairs(user, client_id):
                if entity in limits:
                    return QuotaMatch(*both, limits[entity])
        if ((USER, user),) in limits:
            return QuotaMatch(user, "", limits[((USER, user),)])
        if client_id:
            for entity in _pairs(None, client_id):
                if entity in limits:
                    return QuotaMatch(*both, limits[entity])
        if ((USER, None),) in limits:
            return QuotaMatch(user, "", limits[((USER, None),)])
        if client_id:
            for alone in (((CLIENT_ID, client_id),), ((CLIENT_ID, None),)):
                if alone in limits:
                    return QuotaMatch("", client_id, limits[alone])
        return None
