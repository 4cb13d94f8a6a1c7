"""Settings of Apache Kafka that have no effect here, and settings that are refused because they promise protection.

A file or a script made for Kafka works unchanged if ignoring a setting does no harm: sizes of threads, buffers and
windows of metrics, copies between directories, tiered storage that is off. A setting by which Kafka protects a node (a
setting of SASL or TLS that this node does not have) is refused at the start: a node that accepted the setting would
look protected, and would be open.
`kafka-configs` may alter the same settings here as in Kafka. Names, types and defaults are those of Kafka.
"""

from collections.abc import Mapping
from typing import Final

from tailrace.model.settings import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    SHORT,
    STRING,
    Setting,
    SettingType,
    Value,
    setting,
)

_NO_LIMIT: Final = 2**63 - 1
_ACCEPTED: Final = "Accepted for Kafka's files."


def _accepted(name: str, kind: SettingType, default: Value, *, dynamic: bool = False) -> Setting:
    return setting(name, kind, default, _ACCEPTED, dynamic=dynamic)


WITHOUT_EFFECT = (
    # Threads and queues
    _accepted("background.threads", INT, 10, dynamic=True),
    _accepted("num.replica.fetchers", INT, 1, dynamic=True),
    _accepted("num.replica.alter.log.dirs.threads", INT, None),
    _accepted("queued.max.requests", INT, 500),
    _accepted("request.timeout.ms", INT, 30_000),
    _accepted("socket.listen.backlog.size", INT, 50),
    _accepted("socket.connection.setup.timeout.ms", LONG, 10_000),
    _accepted("socket.connection.setup.timeout.max.ms", LONG, 30_000),
    _accepted("num.network.threads.per.listener", INT, None),
    # Replication and the controller
    _accepted("replica.socket.receive.buffer.bytes", INT, 65_536),
    _accepted("replica.alter.log.dirs.io.max.bytes.per.second", LONG, _NO_LIMIT, dynamic=True),
    _accepted("unclean.leader.election.interval.ms", LONG, 300_000),
    _accepted("controlled.shutdown.enable", BOOLEAN, True),
    _accepted("controlled.shutdown.max.retries", INT, 3),
    _accepted("controlled.shutdown.retry.backoff.ms", LONG, 5_000),
    _accepted("controller.performance.sample.period.ms", LONG, 60_000),
    _accepted("controller.performance.always.log.threshold.ms", LONG, 2_000),
    _accepted("controller.socket.timeout.ms", INT, 30_000),
    _accepted("controller.quorum.append.linger.ms", INT, 25),
    _accepted("controller.quorum.auto.join.enable", BOOLEAN, False),
    _accepted("server.max.startup.time.ms", LONG, _NO_LIMIT),
    _accepted("metadata.log.dir", STRING, None),
    _accepted("metadata.log.segment.ms", LONG, 604_800_000),
    _accepted("metadata.max.idle.interval.ms", INT, 500),
    _accepted("add.partitions.to.txn.retry.backoff.ms", INT, 20),
    _accepted("add.partitions.to.txn.retry.backoff.max.ms", INT, 100),
    # Groups and transactions
    _accepted("group.coordinator.threads", INT, 4),
    _accepted("group.coordinator.append.linger.ms", INT, 5),
    _accepted("group.consumer.min.session.timeout.ms", INT, 45_000),
    _accepted("group.consumer.max.session.timeout.ms", INT, 60_000),
    _accepted("group.consumer.min.heartbeat.interval.ms", INT, 5_000),
    _accepted("group.consumer.max.heartbeat.interval.ms", INT, 15_000),
    _accepted("group.share.heartbeat.interval.ms", INT, 5_000),
    _accepted("group.share.session.timeout.ms", INT, 45_000),
    _accepted("group.share.record.lock.duration.ms", INT, 30_000),
    _accepted("group.share.delivery.count.limit", INT, 5),
    _accepted("group.share.partition.max.record.locks", INT, 2_000),
    _accepted("group.share.max.size", SHORT, 200),
    _accepted("share.coordinator.state.topic.num.partitions", INT, 50),
    _accepted("share.coordinator.state.topic.replication.factor", SHORT, 3),
    _accepted("share.coordinator.state.topic.min.isr", SHORT, 2),
    _accepted("transaction.state.log.load.buffer.size", INT, 5_242_880),
    _accepted("transactional.id.remove.interval.ms", INT, 3_600_000),
    # Quotas and metrics
    _accepted("alter.log.dirs.replication.quota.window.num", INT, 11),
    _accepted("alter.log.dirs.replication.quota.window.size.seconds", INT, 1),
    _accepted("metric.reporters", LIST, ("org.apache.kafka.common.metrics.JmxReporter",), dynamic=True),
    _accepted("metrics.num.samples", INT, 2),
    _accepted("metrics.recording.level", STRING, "INFO"),
    _accepted("metrics.sample.window.ms", LONG, 30_000),
    _accepted("kafka.metrics.reporters", LIST, ()),
    _accepted("kafka.metrics.polling.interval.secs", INT, 10),
    _accepted("auto.include.jmx.reporter", BOOLEAN, True),
    _accepted("telemetry.max.bytes", INT, 1_048_576),
    # Logs
    _accepted("log.initial.task.delay.ms", LONG, 30_000),
    _accepted("log.message.downconversion.enable", BOOLEAN, True, dynamic=True),
    _accepted("early.start.listeners", STRING, None),
    _accepted("max.request.partition.size.limit", INT, 2_000),
    _accepted("remote.fetch.max.wait.ms", INT, 500, dynamic=True),
    _accepted("ssl.protocol", STRING, "TLSv1.3"),
    # The client's side of Kerberos and OAuth: no setting that opens a node
    _accepted("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", dynamic=True),
    _accepted("sasl.kerberos.min.time.before.relogin", LONG, 60_000, dynamic=True),
    _accepted("sasl.kerberos.ticket.renew.jitter", DOUBLE, 0.05, dynamic=True),
    _accepted("sasl.kerberos.ticket.renew.window.factor", DOUBLE, 0.8, dynamic=True),
    _accepted("sasl.login.refresh.buffer.seconds", SHORT, 300, dynamic=True),
    _accepted("sasl.login.refresh.min.period.seconds", SHORT, 60, dynamic=True),
    _accepted("sasl.login.refresh.window.factor", DOUBLE, 0.8, dynamic=True),
    _accepted("sasl.login.refresh.window.jitter", DOUBLE, 0.05, dynamic=True),
)
"""Settings whose values are parsed and shown, but not used."""

_PROTECTING: Final = (
    "ssl.",
    "sasl.",
    "security.",
    "listener.name.",
    "password.encoder.",
    "delegation.token.",
)
_PROTECTING_NAMES: Final[Mapping[str, str]] = {
    "principal.builder.class": "authenticates clients",
    "client.quota.callback.class": "keeps clients to their quotas",
    "alter.config.policy.class.name": "says which settings may be altered",
    "create.topic.policy.class.name": "says which topics may be created",
}


_WAYS_OUT: Final = {
    "ssl.keystore.password": "A PEM file has no password of its own; ssl.key.password is the password of the key",
    "ssl.truststore.password": "A PEM file with certificates of authorities has no password",
}


def _way_out(name: str) -> str:
    return _WAYS_OUT.get(
        name, "Leave it out, and listen on loopback addresses or in a network that is itself protected"
    )


def refusal_of(name: str) -> str | None:
    """The reason why a node does not start with this setting of Kafka's, and how to correct it; None: the node
    starts."""
    why = _PROTECTING_NAMES.get(name)
    if why is None and name.startswith(_PROTECTING):
        why = "protects a listener or what passes through it"
    if why is None:
        return None
    return (
        f"{name}: in Kafka this {why}; this node would be open where it looks protected: it has TLS, SASL and"
        f" ACLs (docs/security.md), but no policy. {_way_out(name)}"
    )
