"""Settings of sockets, of clients' limits on sockets, and of the watch over a node."""

from tailrace.model.settings import BOOLEAN, INT, LIST, LONG, STRING, setting
from tailrace.net.limits import ListenerLimits

_LIMITS = ListenerLimits()

NETWORK_SETTINGS = (
    setting(
        "listeners",
        LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Addresses to listen on: NAME://HOST:PORT. A loopback address means both loopbacks; port 0 picks a free port.",
    ),
    setting(
        "advertised.listeners",
        LIST,
        None,
        "Addresses given to clients, if they differ from `listeners`; port 0 means the port of the listener.",
    ),
    setting(
        "listener.insecure.allow",
        BOOLEAN,
        False,
        "Listen on addresses that other machines can reach, without encryption, authentication or permissions.",
    ),
    setting(
        "listener.security.protocol.map",
        LIST,
        ("PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT"),
        "The protocol of each listener name: PLAINTEXT, SSL (TLS), SASL_PLAINTEXT or SASL_SSL. A listener SSL has TLS.",
    ),
    setting("inter.broker.listener.name", STRING, None, "The listener that other nodes use; the first by default."),
    setting(
        "controller.listener.names",
        LIST,
        (),
        "Which listeners are for controllers and brokers only; a node that keeps the metadata alone needs none.",
    ),
    setting(
        "socket.request.max.bytes",
        INT,
        _LIMITS.large_frame_bytes,
        "The largest Produce, JoinGroup, SyncGroup or OffsetCommit (Kafka: every API; others: docs/limits.md).",
        at_least=1 << 20,
        at_most=250 << 20,
    ),
    setting("socket.send.buffer.bytes", INT, -1, "Accepted for Kafka's files; the system chooses.", at_least=-1),
    setting("socket.receive.buffer.bytes", INT, -1, "Accepted for Kafka's files; the system chooses.", at_least=-1),
    setting("num.network.threads", INT, 1, "Accepted for Kafka's files; one event loop does the work.", at_least=1),
    setting("num.io.threads", INT, 1, "Accepted for Kafka's files; one event loop does the work.", at_least=1),
    setting(
        "max.connections",
        INT,
        _LIMITS.max_connections,
        "The most connections at once to each listener (Kafka: no limit).",
        at_least=1,
    ),
    setting(
        "max.connections.per.ip",
        INT,
        _LIMITS.max_connections_per_ip,
        "The most connections at once from one address, except from this machine (Kafka: no limit).",
        at_least=1,
    ),
    setting(
        "max.connection.creation.rate",
        INT,
        _LIMITS.new_connections_per_second,
        "The most new connections a second from other machines; further connections wait (Kafka: no limit).",
        at_least=1,
    ),
    setting(
        "max.connection.creation.rate.per.ip",
        INT,
        _LIMITS.new_connections_per_ip_per_second,
        "The most new connections a second from one other machine (Kafka: a quota, no limit by default).",
        at_least=1,
    ),
    setting(
        "connections.max.stall.ms",
        LONG,
        _LIMITS.stall_ms,
        "A client that takes nothing of its answers for this long is cut off (Kafka: only when it is idle).",
        at_least=1,
    ),
    setting(
        "connections.max.idle.ms", LONG, _LIMITS.idle_ms, "A connection that is silent this long is closed.", at_least=1
    ),
    setting(
        "ssl.certificate.warning.days",
        INT,
        30,
        "From this number of days before a listener's certificate expires, the log says so each hour (not in Kafka).",
        at_least=0,
    ),
    setting(
        "queued.max.request.bytes",
        LONG,
        256 << 20,
        "The most memory for requests that are being read (Kafka: no limit).",
        at_least=1 << 20,
    ),
    setting(
        "metrics.listener",
        STRING,
        None,
        "HOST:PORT that serves /metrics (Prometheus) and /healthz; port 0 picks a free port. None by default.",
    ),
    setting(
        "metrics.max.partitions",
        INT,
        10_000,
        "Partitions with offsets and sizes of their own in /metrics; the others are in the sums only.",
        at_least=0,
    ),
    setting("log.format", STRING, "text", "How the node's own log on stderr is written.", one_of=("text", "json")),
)
