"""The checks of a shared consumer's settings."""

from collections.abc import Mapping
from typing import Any, Final

from tailrace.model.errors import ErrorCode, KafkaError

_SESSION_MS: Final = 45_000
"""The default of the consumer."""


def check_settings(least: Mapping[str, tuple[int | None, int]], grace_ms: int, consumer: Mapping[str, Any]) -> None:
    """`least`: by name a setting, None for its default, and its lowest value. `consumer`: those of the consumer below.

    Raises KafkaError INVALID_CONFIG.
    """
    for setting, (value, lowest) in least.items():
        if value is not None and value < lowest:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{setting} {value}; at least {lowest}")
    session_ms = consumer.get("session_timeout_ms", _SESSION_MS)
    if grace_ms > session_ms // 2:
        detail = f"grace_ms {grace_ms}; at most half of session.timeout.ms, {session_ms}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, detail)
