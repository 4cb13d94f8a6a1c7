"""Operations on resources, as Kafka's ACLs name them (KIP-11, KIP-140). Values are the numbers on the wire."""

from enum import IntEnum
from typing import Final, NamedTuple

from tailrace.model.ids import ZERO_TOPIC_ID


class Operation(IntEnum):
    """Something that a principal may be allowed to do to a resource (`AclOperation`)."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class SecuredType(IntEnum):
    """The type of a resource that access is about. The types of resources with settings have other numbers."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    USER = 7


class SecuredResource(NamedTuple):
    """A topic, a group, a transactional id, a user or the cluster."""

    type: SecuredType
    name: str
    topic_id: bytes = ZERO_TOPIC_ID
    """Set if a request names a topic by its id alone; `name` is empty then."""


CLUSTER: Final = SecuredResource(SecuredType.CLUSTER, "kafka-cluster")
"""The resource of requests that are about no single topic, group, transactional id or user."""
