"""`tailrace sessions`: the fetch sessions that brokers keep for consumers and followers (KIP-227)."""

from typing import Annotated

import typer

from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, Format, Output, Row, admin_of, say, show, write
from tailrace.client.admin.fetch_sessions import FetchSessionListing, SessionCacheListing
from tailrace.model.errors import ErrorCode, KafkaError

_BROKER_COLUMNS = ("BROKER", "SLOTS-USED", "SLOTS", "PARTITIONS", "EVICTIONS")
_SESSION_COLUMNS = (
    *("BROKER", "SESSION-ID", "EPOCH", "PRINCIPAL", "CLIENT-ID", "HOST", "LISTENER", "REPLICA", "PRIVILEGED"),
    *("PARTITIONS", "TOPIC-IDS", "AGE-MS", "IDLE-MS", "HITS", "SAVED-BYTES"),
)
_OF_KAFKA = (
    "Apache Kafka has counts of its sessions alone, as JMX metrics of each broker: kafka.server:type=FetchSessionCache"
)
_CONSUMER = -1


def command(
    broker_ids: Annotated[list[int] | None, typer.Argument(metavar="[BROKER...]", show_default=False)] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show the fetch sessions of brokers: the consumers and followers that fetch incrementally.

    Without ids, of all brokers that run. HITS are incremental fetches, SAVED-BYTES an estimate of what full fetches
    would have taken more. A privileged session, of a follower, is not displaced by a consumer's. Exit code 1 if a
    broker does not describe its sessions.
    """
    with admin_of(bootstrap_server) as admin:
        described = admin.describe_fetch_sessions(None if not broker_ids else dict.fromkeys(broker_ids))
    faults = [answer for answer in described.values() if isinstance(answer, KafkaError)]
    found = {broker: answer for broker, answer in described.items() if not isinstance(answer, KafkaError)}
    if output is Format.JSON:
        show([_broker_with_sessions(broker, cache) for broker, cache in found.items()], (), output)
    elif found:
        show([_broker_row(broker, cache) for broker, cache in found.items()], _BROKER_COLUMNS, output)
        rows = [_session_row(broker, session) for broker, cache in found.items() for session in cache.sessions]
        if rows:
            write("")
            show(rows, _SESSION_COLUMNS, output)
    for fault in faults:
        say(fault.detail)
    if any(fault.code is ErrorCode.UNSUPPORTED_VERSION for fault in faults):
        say(_OF_KAFKA)
    if faults:
        raise typer.Exit(1)


def _broker_row(broker: int, cache: SessionCacheListing) -> Row:
    return {
        "BROKER": broker,
        "SLOTS-USED": cache.session_count,
        "SLOTS": cache.slots,
        "PARTITIONS": cache.partition_count,
        "EVICTIONS": cache.evictions,
    }


def _broker_with_sessions(broker: int, cache: SessionCacheListing) -> Row:
    return {**_broker_row(broker, cache), "SESSIONS": [_session_row(broker, session) for session in cache.sessions]}


def _session_row(broker: int, session: FetchSessionListing) -> Row:
    return {
        "BROKER": broker,
        "SESSION-ID": session.session_id,
        "EPOCH": session.epoch,
        "PRINCIPAL": session.principal,
        "CLIENT-ID": session.client_id,
        "HOST": session.client_host,
        "LISTENER": session.listener_name,
        "REPLICA": session.replica_id if session.replica_id != _CONSUMER else None,
        "PRIVILEGED": session.is_privileged,
        "PARTITIONS": session.partition_count,
        "TOPIC-IDS": session.uses_topic_ids,
        "AGE-MS": session.age_ms,
        "IDLE-MS": session.idle_ms,
        "HITS": session.incremental_fetches,
        "SAVED-BYTES": session.saved_bytes,
    }
