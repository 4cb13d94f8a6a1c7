"""Sources of a node's settings: files, the environment, words of the form `name=value`. Each gives names and texts.

An unknown name is refused, with the nearest known name. A setting by which Kafka protects a node is refused, with a way
to protect a node here. An environment variable may belong to a user, or Kubernetes may have made it for a Service: so a
variable is refused only if its name is nearly the name of a setting. A variable with an empty text counts as not set:
Docker Compose passes a variable that its host does not have as an empty text.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.settings import FORMER_NAMES, Setting, attribute_name, current_name, find
from tailrace.node.settings.environment import ENVIRONMENT_PREFIX, may_be_setting
from tailrace.node.settings.kafka import refusal_of
from tailrace.node.settings.properties import parse_properties
from tailrace.node.settings.table import BROKER_SETTINGS, listener_setting, listener_setting_name
from tailrace.node.settings.tls import OF_LISTENER

_OF_A_SERVICE: Final = re.compile(
    r"TAILRACE_(?:NAME|ENV_\w+"
    r"|(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|ADDR|(?:PORT_)?(?:START|END)|PORT))?)?))"
)
"""The variables that Kubernetes makes of a Service, and Docker of a link, whose name begins with `tailrace`."""
_PLAIN_PORT: Final = re.compile(r"\s*\d+\s*")
"""The text of TAILRACE_PORT that a user has set: Kubernetes makes tcp://10.0.0.1:9092."""
_NEARLY: Final = 0.88
"""From this similarity on a name counts as a misspelt setting: NODE_IDD for NODE_ID has 0.93, NODE_IP 0.86."""
_WORDS_OF_PROTECTION: Final = 3
"""Kafka's names of settings for protection mostly have at least this many words: so TAILRACE_SASL_PASSWORD counts as a
user's own variable."""

_FORMER: Final = tuple(name for name, current in FORMER_NAMES.items() if current in BROKER_SETTINGS)
_logger = logging.getLogger("tailrace.node")

_ELSEWHERE = {
    "broker.id": "it is called node.id now",
    "zookeeper.connect": "there is no ZooKeeper any more, so leave it out",
}
"""Names in old Kafka files, with advice."""


def known_setting(name: str) -> Setting:
    """The setting of this name. Raises KafkaError(INVALID_CONFIG) for any other name; the message says what to do."""
    of_listener = listener_setting(name)
    if of_listener is not None:
        return of_listener[1]
    if current_name(name) not in BROKER_SETTINGS:
        if name in _ELSEWHERE:
            raise _refusal(f"unknown setting {name!r}; {_ELSEWHERE[name]}")
        if (why := refusal_of(name)) is not None:
            raise _refusal(why)
    return find(BROKER_SETTINGS, name)


def checked(texts: dict[str, str], source: str) -> dict[str, str]:
    """The texts by current names. Raises KafkaError(INVALID_CONFIG) that names the source and every wrong setting."""
    faults = []
    named: dict[str, str] = {}
    for name, text in texts.items():
        try:
            setting = known_setting(name)
            setting.parse(text)
        except KafkaError as fault:
            faults.append(fault.detail)
            continue
        if setting.name in named:
            faults.append(f"{setting.name} is there twice, once under a former name")
        if setting.name != name:
            _logger.warning("event=setting-deprecated source=%s name=%s instead=%s", source, name, setting.name)
        named[setting.name] = text
    if faults:
        raise _refusal(f"{source}: {'; '.join(faults)}")
    return named


def read_overrides(overrides: Iterable[str]) -> dict[str, str]:
    """The settings in words of the form `name=value`. Raises KafkaError(INVALID_CONFIG) for another form."""
    given: dict[str, str] = {}
    for override in overrides:
        name, separator, text = override.partition("=")
        if not separator:
            raise _refusal(f"--set {override}: say name=value")
        given[name.strip()] = text.strip()
    return given


def read_file(path: Path) -> dict[str, str]:
    """The settings in a server.properties or, if its name ends in .toml, a TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as fault:
        raise _refusal(f"cannot read {path}: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise _refusal(f"cannot read {path}: it is not UTF-8 text") from None
    if path.suffix != ".toml":
        try:
            return parse_properties(text)
        except ValueError as fault:
            raise _refusal(f"{path}: {fault}") from None
    import tomllib  # not at the top: few nodes have such a file

    try:
        return dict(_flatten(tomllib.loads(text), ""))
    except tomllib.TOMLDecodeError as fault:
        raise _refusal(f"{path} is not TOML: {fault}") from None


def _flatten(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield prefix + key, ",".join(map(str, value))
        elif isinstance(value, bool):
            yield prefix + key, "true" if value else "false"
        else:
            yield prefix + key, str(value)


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings among environment variables: TAILRACE_NODE_ID is node.id.

    Other names are ignored, with one line of the log for the names that do not belong to a Service. Raises
    KafkaError(INVALID_CONFIG) for a name that is nearly the name of a setting, in upper or lower case, and for the name
    of a setting by which Kafka protects a node.
    """
    names = {ENVIRONMENT_PREFIX + attribute_name(name).upper(): name for name in (*BROKER_SETTINGS, *_FORMER)}
    given: dict[str, str] = {}
    ignored = []
    for variable, text in environment.items():
        if not may_be_setting(variable) or not text.strip():
            continue
        if variable in names:
            given[names[variable]] = text
        elif (of_listener := _listener_setting_in(variable)) is not None:
            given[of_listener] = text
        elif not _is_service_variable(variable, text):
            _refuse_misspelt(variable, names)
            ignored.append(variable)
    if ignored:
        _logger.warning("event=environment-ignored variables=%s reason='no settings'", ",".join(sorted(ignored)))
    return given


def _listener_setting_in(variable: str) -> str | None:
    """The name of a setting for one listener: TAILRACE_LISTENER_NAME_CONTROLLER_SSL_KEYSTORE_LOCATION."""
    rest = variable.removeprefix(f"{ENVIRONMENT_PREFIX}LISTENER_NAME_")
    for name in OF_LISTENER if rest != variable else ():
        listener = rest.removesuffix(f"_{attribute_name(name).upper()}")
        if listener not in ("", rest):
            return listener_setting_name(listener, name)
    return None


def _is_service_variable(variable: str, text: str) -> bool:
    if _OF_A_SERVICE.fullmatch(variable) is None:
        return False
    is_address = variable.endswith("_PORT") and not variable.endswith(
        ("_SERVICE_PORT", "_TCP_PORT", "_UDP_PORT", "_SCTP_PORT")
    )
    return not (is_address and _PLAIN_PORT.fullmatch(text))


def _refuse_misspelt(variable: str, names: Iterable[str]) -> None:
    import difflib  # not at the top: few nodes have such a variable

    word = variable[len(ENVIRONMENT_PREFIX) :].upper()
    near = difflib.get_close_matches(word, [name.removeprefix(ENVIRONMENT_PREFIX) for name in names], 1, _NEARLY)
    if near:
        raise _refusal(
            f"unknown environment variable {variable}; did you mean {ENVIRONMENT_PREFIX}{near[0]}?"
            f" A variable of your own needs a name that does not begin with {ENVIRONMENT_PREFIX}"
        )
    why = refusal_of(word.lower().replace("_", "."))
    if why is not None and (word.count("_") + 1 >= _WORDS_OF_PROTECTION or word == "SUPER_USERS"):
        raise _refusal(f"environment variable {variable}: {why}")


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
