"""Settings of the access of clients: authorizer, principals that may do everything, audit log and quotas."""

from collections.abc import Iterable
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.settings import BOOLEAN, INT, LONG, STRING, setting
from tailrace.server.quotas.rates import QuotaConfig

STANDARD_AUTHORIZERS: Final = ("org.apache.kafka.metadata.authorizer.StandardAuthorizer", "StandardAuthorizer")
"""The values of authorizer.class.name by which ACLs decide."""

ACCESS_SETTINGS: Final = (
    setting(
        "authorizer.class.name",
        STRING,
        None,
        "StandardAuthorizer: the ACLs of the cluster decide on the access of clients. Empty: every client may do"
        " everything.",
    ),
    setting(
        "super.users",
        STRING,
        None,
        "The principals that may do everything, whatever the ACLs say: User:NAME;User:NAME. All nodes are among them.",
    ),
    setting(
        "allow.everyone.if.no.acl.found",
        BOOLEAN,
        False,
        "Whether every client may do everything to a resource that no ACL is about.",
    ),
    setting(
        "audit.log.enable",
        BOOLEAN,
        False,
        "Write denied accesses, administration and authentication to an audit log (Kafka: none).",
    ),
    setting(
        "audit.log.dir",
        STRING,
        None,
        "The directory of the audit log, for one node; by default the data directory's name with -audit behind it.",
    ),
    setting(
        "audit.log.segment.bytes",
        INT,
        16 << 20,
        "A file of the audit log of this size gets no more lines.",
        at_least=1 << 16,
        at_most=1 << 30,
    ),
    setting(
        "audit.log.retention.bytes",
        LONG,
        256 << 20,
        "The most bytes of the audit log; the oldest files are removed, and a line tells of them.",
        at_least=1 << 17,
    ),
    setting(
        "quota.window.num",
        INT,
        QuotaConfig,
        "The number of samples from which the rates of clients with quotas are computed.",
        at_least=1,
    ),
    setting(
        "quota.window.size.seconds",
        INT,
        QuotaConfig,
        "The time of a sample of these rates, and the longest throttle time by request_percentage.",
        at_least=1,
    ),
)


def super_users(text: str | None) -> tuple[str, ...]:
    """The principals of super.users, each `Type:name`. Raises KafkaError INVALID_CONFIG."""
    found = tuple(name for part in (text or "").split(";") if (name := part.strip()))
    for name in found:
        if ":" not in name:
            raise _refusal(f"super.users: {name!r} has no type; write User:{name}, and a semicolon between principals")
    return found


def check_access(class_name: str | None, dependents: Iterable[str]) -> None:
    """Check the authorizer, and that `dependents`, given settings, have an authorizer. Raises KafkaError
    INVALID_CONFIG."""
    if class_name and class_name not in STANDARD_AUTHORIZERS:
        raise _refusal(
            f"authorizer.class.name: there is no authorizer {class_name!r} here; StandardAuthorizer decides by the ACLs"
            " of the cluster, and without the setting every client may do everything"
        )
    for name in () if class_name else dependents:
        raise _refusal(
            f"{name}: without an authorizer every client may do everything; add"
            " authorizer.class.name=StandardAuthorizer, or leave the setting out"
        )


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
