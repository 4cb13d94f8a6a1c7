"""Settings of groups and of client metrics, with Kafka's names, defaults and limits.

Settings of groups (KIP-848, KIP-932, KIP-1071): a consumer group goes by `consumer.*` at once; there are no share and
no streams groups, and their settings are kept for the tools that set these. Settings of client metrics (KIP-714) say
which metrics clients shall send: no node asks for metrics, so these settings are kept and change nothing.
"""

from collections.abc import Mapping
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.settings import Setting, SettingType, Table, table_of

_INT, _STRING, _LIST = SettingType.INT, SettingType.STRING, SettingType.LIST

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"

SETTINGS_OF_GROUPS: Table = table_of(
    Setting(
        name=SESSION_TIMEOUT,
        type=_INT,
        default=45_000,
        at_least=45_000,
        at_most=60_000,
        doc="How long a member of this consumer group may be silent.",
    ),
    Setting(
        name=HEARTBEAT_INTERVAL,
        type=_INT,
        default=5_000,
        at_least=5_000,
        at_most=15_000,
        doc="How often members of this consumer group send heartbeats.",
    ),
    *(
        Setting(name=name, type=_INT, default=default, at_least=low, at_most=high, doc="Kept, without effect.")
        for name, default, low, high in (
            ("share.session.timeout.ms", 45_000, 45_000, 60_000),
            ("share.heartbeat.interval.ms", 5_000, 5_000, 15_000),
            ("share.record.lock.duration.ms", 30_000, 15_000, 60_000),
            ("streams.session.timeout.ms", 45_000, 45_000, 60_000),
            ("streams.heartbeat.interval.ms", 5_000, 5_000, 15_000),
            ("streams.num.standby.replicas", 0, 0, 2),
        )
    ),
    Setting(name="share.auto.offset.reset", type=_STRING, default="latest", doc="Kept, without effect."),
    Setting(
        name="share.isolation.level",
        type=_STRING,
        default="read_uncommitted",
        one_of=("read_uncommitted", "read_committed"),
        doc="Kept, without effect.",
    ),
)

SETTINGS_OF_CLIENT_METRICS: Table = table_of(
    Setting(
        name="interval.ms",
        type=_INT,
        default=300_000,
        at_least=100,
        at_most=3_600_000,
        doc="How often clients send them. Kept, without effect.",
    ),
    Setting(name="metrics", type=_LIST, default=(), doc="Beginnings of their names. Kept, without effect."),
    Setting(name="match", type=_LIST, default=(), doc="Which clients, as `key=pattern`. Kept, without effect."),
)

_MATCH_KEYS: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
_RESETS: Final = ("latest", "earliest")
_RESET_BY_DURATION: Final = "by_duration:"


def check_of_groups(stated: Mapping[str, str]) -> None:
    """The checks that the table does not make. Raises KafkaError(INVALID_CONFIG)."""
    reset = stated.get("share.auto.offset.reset")
    if reset is not None and reset not in _RESETS and not reset.startswith(_RESET_BY_DURATION):
        raise _refusal(
            f"share.auto.offset.reset={reset!r}: must be latest, earliest or by_duration:<ISO 8601 duration>"
        )


def check_of_client_metrics(stated: Mapping[str, str]) -> None:
    """The checks that the table does not make. Raises KafkaError(INVALID_CONFIG)."""
    for condition in filter(None, stated.get("match", "").split(",")):
        key, separator, pattern = condition.strip().partition("=")
        if not separator or not pattern or key.strip() not in _MATCH_KEYS:
            raise _refusal(f"match={condition!r}: say key=pattern with one of {', '.join(_MATCH_KEYS)}")


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
