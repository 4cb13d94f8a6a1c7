"""Settings of SASL: the mechanisms of listeners, the length of sessions, and the user of the nodes."""

from dataclasses import dataclass
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.security.security_protocol import SecurityProtocol
from tailrace.model.settings import INT, LIST, LONG, PASSWORD, STRING, setting
from tailrace.net.jaas import LoginUser, parse_jaas
from tailrace.net.limits import ListenerLimits
from tailrace.net.sasl import PLAIN, SASL_MECHANISMS, SaslConfig
from tailrace.net.secrets import Secret
from tailrace.node.settings.listeners import SettingValues
from tailrace.server.authentication.gate import GateLimits

_GATE: Final = GateLimits()
_DEFAULT_MECHANISM: Final = "SCRAM-SHA-512"

SASL_SETTINGS = (
    setting(
        "sasl.enabled.mechanisms",
        LIST,
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        "The mechanisms of listeners with SASL (Kafka: GSSAPI, which is not built in). PLAIN needs SASL_SSL.",
        one_of=SASL_MECHANISMS,
    ),
    setting(
        "sasl.mechanism.inter.broker.protocol",
        STRING,
        _DEFAULT_MECHANISM,
        "The mechanism by which a broker authenticates to other brokers (Kafka: GSSAPI).",
        one_of=SASL_MECHANISMS,
    ),
    setting(
        "sasl.mechanism.controller.protocol",
        STRING,
        _DEFAULT_MECHANISM,
        "The mechanism by which a node authenticates to controllers (Kafka: GSSAPI).",
        one_of=SASL_MECHANISMS,
    ),
    setting(
        "sasl.jaas.config",
        PASSWORD,
        None,
        "The user of the nodes, the same on each node, in Kafka's form; or env:NAME or file:PATH of the text.",
        sensitive=True,
    ),
    setting(
        "sasl.jaas.config.second",
        PASSWORD,
        None,
        "The user of the nodes with a second password, which this node accepts too while the password changes (not in"
        " Kafka).",
        sensitive=True,
    ),
    setting(
        "connections.max.reauth.ms",
        LONG,
        _GATE.max_reauth_ms,
        "The length of a session, after which a client of SASL must authenticate again (KIP-368); 0: without end.",
        at_least=0,
    ),
    setting(
        "connection.failed.authentication.delay.ms",
        INT,
        _GATE.failure_delay_ms,
        "How long the answer to a failed authentication waits, and up to a quarter longer (Kafka: 100).",
        at_least=0,
        at_most=10_000,
    ),
    setting(
        "sasl.server.max.receive.size",
        INT,
        ListenerLimits().unauthenticated_frame_bytes,
        "The largest request before a client of SASL is authenticated (Kafka: 524288).",
        at_least=1024,
        at_most=1 << 20,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSasl:
    """The settings of SASL of one node."""

    mechanisms: tuple[str, ...]
    user: LoginUser | None
    """The user of the nodes."""
    second_password: Secret | None
    """A second password of this user that the node accepts."""
    of_brokers: SaslConfig | None
    """The authentication of this node at other brokers; None without SASL there."""
    of_controllers: SaslConfig | None
    """The authentication of this node at controllers; None without SASL there."""
    limits: GateLimits


def read_node_sasl(
    settings: SettingValues, *, between_brokers: SecurityProtocol, to_controllers: SecurityProtocol
) -> NodeSasl:
    """Raises KafkaError(INVALID_CONFIG) that names the setting and how to correct it."""
    given = settings.text("sasl.jaas.config")
    user = None if given is None else parse_jaas(Secret(given).reveal())

    def of(protocol: SecurityProtocol, name: str) -> SaslConfig | None:
        if not protocol.has_sasl:
            return None
        if user is None:
            raise _refusal(
                "sasl.jaas.config: nodes authenticate to each other by SASL, and each needs the user of the nodes;"
                " for example sasl.jaas.config=file:PATH, and in the file"
                ' org.apache.kafka.common.security.scram.ScramLoginModule required username="node" password="...";'
            )
        mechanism = settings.text(name) or _DEFAULT_MECHANISM
        if mechanism not in settings.words("sasl.enabled.mechanisms"):
            raise _refusal(f"{name}={mechanism}: sasl.enabled.mechanisms does not have it")
        return SaslConfig(mechanism=mechanism, username=user.username, password=user.password)

    if user is not None:
        user.password.reveal()  # a reference to nothing stops the start, not the first connection
    second = _second_user(settings, user)
    return NodeSasl(
        mechanisms=settings.words("sasl.enabled.mechanisms"),
        user=user,
        second_password=None if second is None else second.password,
        of_brokers=of(between_brokers, "sasl.mechanism.inter.broker.protocol"),
        of_controllers=of(to_controllers, "sasl.mechanism.controller.protocol"),
        limits=GateLimits(
            max_reauth_ms=settings.integer("connections.max.reauth.ms"),
            failure_delay_ms=settings.integer("connection.failed.authentication.delay.ms"),
        ),
    )


def _second_user(settings: SettingValues, user: LoginUser | None) -> LoginUser | None:
    given = settings.text("sasl.jaas.config.second")
    if given is None:
        return None
    try:
        second = parse_jaas(Secret(given).reveal())
    except KafkaError as fault:
        raise _refusal(f"sasl.jaas.config.second: {fault.detail.removeprefix('sasl.jaas.config: ')}") from None
    if user is None or second.username != user.username:
        raise _refusal("sasl.jaas.config.second: the user must be that of sasl.jaas.config; its password is another")
    second.password.reveal()
    return second


def check_listener_sasl(settings: SettingValues, name: str, protocol: SecurityProtocol) -> None:
    """Raises KafkaError(INVALID_CONFIG) for a listener whose clients would send passwords in plain text."""
    if not protocol.has_sasl:
        return
    mechanisms = settings.words("sasl.enabled.mechanisms")
    if not mechanisms:
        raise _refusal(
            f"sasl.enabled.mechanisms: listener {name} has SASL, and no mechanism; clients could not come in"
        )
    if PLAIN in mechanisms and not protocol.has_tls and not settings.flag("listener.insecure.allow"):
        raise _refusal(
            f"sasl.enabled.mechanisms: listener {name} has no TLS, and PLAIN would send passwords in plain text."
            " Ways out: SASL_SSL in listener.security.protocol.map; or SCRAM-SHA-512 alone;"
            " or accept the risk with --insecure (listener.insecure.allow=true)"
        )


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
