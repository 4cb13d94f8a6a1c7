"""Settings as the log states them: legal, and written as Kafka writes them (pure).

Replicas derive from these texts as they stand (`circumstances`): ` TRUE ` is legal and means `true`, so `true` is what
the log says.
"""

from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.settings import Setting

LONGEST_VALUE: Final = 2**15 - 1
"""Kafka's limit too. A value stays in the metadata, on every node, for as long as it holds."""


def stated_value(setting: Setting, text: str) -> str:
    """The text for the log. Raises KafkaError(INVALID_CONFIG) for an illegal value."""
    if len(text) > LONGEST_VALUE:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{setting.name}: {len(text)} characters are more than {LONGEST_VALUE}"
        )
    stated = setting.format(setting.parse(text))
    return text if stated is None else stated
