"""Environment variables that may be settings of a node, told by their names alone, without the table of settings."""

from collections.abc import Mapping

ENVIRONMENT_PREFIX = "TAILRACE_"
_OF_RECORDS = ("TOPIC", "PARTITION", "OFFSET", "TIMESTAMP", "ATTEMPT", "HEADERS", "KEY", "KEY_BASE64", "NO_VALUE")
"""Variables about a record, which `tailrace work` sets for its command: the command may start a node."""
_NOT_SETTINGS = frozenset(
    (
        "TAILRACE_BOOTSTRAP",
        "TAILRACE_COMMAND_CONFIG",
        "TAILRACE_KERNEL",
        "TAILRACE_SPARK_TASKS",
        "TAILRACE_TRACEBACK",
        *(ENVIRONMENT_PREFIX + name for name in _OF_RECORDS),
    )
)
"""Variables that other parts of Tailrace read, or set."""


def may_be_setting(variable: str) -> bool:
    """Whether `read_environment` takes the variable for a setting, or for a misspelt setting."""
    return variable.upper().startswith(ENVIRONMENT_PREFIX) and variable not in _NOT_SETTINGS


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that `read_environment` takes."""
    return {variable: text for variable, text in environment.items() if not may_be_setting(variable)}
