"""Starts that would let strangers in: a listener for other machines without encryption, authentication or an
authorizer; keys and passwords in files that other users of the machine can read.

Absence is closed: a node starts only where every part is there, or where the operator accepts the risk by name.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.settings import Value
from tailrace.net.jaas import parse_jaas
from tailrace.net.secrets import Secret
from tailrace.node.settings.listeners import ListenerAddress, ListenerConfig, is_loopback_host, is_wildcard_host

_KEY_STORE: Final = "ssl.keystore.location"
_USER_OF_NODES: Final = ("sasl.jaas.config", "sasl.jaas.config.second")
_SECRET_TEXTS: Final = frozenset((*_USER_OF_NODES, "ssl.key.password", "ssl.keystore.key"))
"""Settings whose text is a secret, unless the text is a reference."""
_READ_BY_OTHERS: Final = 0o077
_READ_BY_OTHERS_OF_ROOT: Final = 0o037
"""A file of root may be read by a group, as the files of Kubernetes' secrets are."""


class ReachedNode(Protocol):
    """The settings that decide whether strangers are kept out: a `NodeConfig`."""

    addresses: ListenerConfig

    def flag(self, name: str) -> bool: ...

    def value_of(self, listener: str, name: str) -> Value: ...

    @property
    def authorizer_class(self) -> str | None: ...


def check_reach(config: ReachedNode) -> None:
    """Check each listener that other machines can reach, for clients, brokers or controllers. Raises
    KafkaError(INVALID_CONFIG) that says what is missing, and the ways out."""
    advertised = {endpoint.name for endpoint in config.addresses.advertised}
    for endpoint in config.addresses.listeners:
        if is_loopback_host(endpoint.host):
            continue
        missing = list(_missing(config, endpoint))
        if missing and not config.flag("listener.insecure.allow"):
            raise _refusal(
                f"listeners={endpoint}: other machines could reach it, and {'; '.join(missing)}."
                " Ways out: secure the listener with the settings in brackets (docs/security.md);"
                " or listen on 127.0.0.1, perhaps behind a tunnel (ssh -L);"
                " or accept the risk with --insecure (listener.insecure.allow=true)"
            )
        if is_wildcard_host(endpoint.host) and endpoint.name not in advertised:
            raise _refusal(
                f"listeners={endpoint}: clients cannot connect to a wildcard;"
                f" add advertised.listeners={endpoint.name}://HOST:{endpoint.port}"
            )


def _missing(config: ReachedNode, endpoint: ListenerAddress) -> Iterator[str]:
    protocol, name = config.addresses.protocol_of(endpoint.name), endpoint.name
    if not protocol.has_tls:
        yield f"nothing encrypts its connections (listener.security.protocol.map={name}:SASL_SSL)"
    if not protocol.has_sasl and not (protocol.has_tls and config.value_of(name, "ssl.client.auth") == "required"):
        way = "ssl.client.auth=required" if protocol.has_tls else f"listener.security.protocol.map={name}:SASL_SSL"
        yield f"this node lets every client in ({way})"
    if config.authorizer_class is None:
        yield "every client may do everything (authorizer.class.name=StandardAuthorizer)"


def check_secret_files(stated: Mapping[str, Value]) -> None:
    """Check the files of keys and passwords that `stated` settings name. Raises KafkaError(INVALID_CONFIG) for a file
    that another user can read."""
    for name, value in stated.items():
        if not isinstance(value, str) or not value:
            continue
        if name == _KEY_STORE or name.endswith(f".{_KEY_STORE}"):
            _check_file(name, Path(value))
        elif name in _USER_OF_NODES:
            text = Secret(value)
            if text.location is not None:
                _check_file(name, text.location)
            try:
                password = parse_jaas(text.reveal()).password
            except KafkaError:
                continue  # the reader of the setting says so
            if password.location is not None:
                _check_file(name, password.location)


def check_settings_file(file: Path, given: Mapping[str, str]) -> None:
    """Check a file of settings. Raises KafkaError(INVALID_CONFIG) if the file has a key or a password, and another user
    can read the file."""
    for name in given:
        if _secret_name(name) in _SECRET_TEXTS and not _is_reference(name, given[name]):
            _check_file(name, file)


def _secret_name(name: str) -> str:
    """The name of a setting, without a listener."""
    return next((known for known in _SECRET_TEXTS if name.endswith(f".{known}")), name)


def _is_reference(name: str, text: str) -> bool:
    if not text or (secret := Secret(text)).is_reference:
        return True
    if name not in _USER_OF_NODES:
        return False
    try:
        return parse_jaas(secret.reveal()).password.is_reference
    except KafkaError:
        return False  # the text is refused elsewhere


def _check_file(setting: str, file: Path) -> None:
    try:
        state = file.stat()
    except OSError:
        return  # the reader of the file says so
    if not stat.S_ISREG(state.st_mode):
        return
    is_of_root = state.st_uid == 0
    if state.st_uid not in (0, os.geteuid()):
        raise _refusal(
            f"{setting}: {file} belongs to user {state.st_uid}, and the secret in it is for the node alone; chown it"
            " to the user of the node, or to root"
        )
    mode = stat.S_IMODE(state.st_mode)
    if mode & (_READ_BY_OTHERS_OF_ROOT if is_of_root else _READ_BY_OTHERS):
        raise _refusal(
            f"{setting}: other users can read the secret in {file} (mode {mode:04o}); chmod 600 {file}"
            + (", or 640 for a group" if is_of_root else "")
        )


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
