"""Settings of TLS, with Kafka's names; each may stand behind `listener.name.NAME.` for one listener.

Certificates and keys are PEM: files, or texts in the settings themselves (KIP-651). None of these settings can be
changed over the wire.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.security.principal_rules import PrincipalRules, whole_name
from tailrace.model.settings import LIST, STRING, Setting, SettingType, Value, setting
from tailrace.net.tls import CLIENT_AUTH, TLS_VERSIONS, Pem, TlsConfig
from tailrace.net.tls_acceptor import PrincipalOf

_PEM: Final = ("PEM",)


def _secret(name: str, doc: str) -> Setting:
    return replace(setting(name, SettingType.PASSWORD, None, doc), sensitive=True)


TLS_SETTINGS = (
    setting(
        "ssl.keystore.location",
        STRING,
        None,
        "A PEM file with this node's key, certificate and chain of certificates; read again when it changes.",
    ),
    setting("ssl.keystore.type", STRING, "PEM", "The form of the key store (Kafka: JKS).", one_of=_PEM),
    setting(
        "ssl.keystore.certificate.chain",
        STRING,
        None,
        "This node's certificate and its chain as PEM text, in place of ssl.keystore.location.",
    ),
    _secret("ssl.keystore.key", "The key of ssl.keystore.certificate.chain as PEM text."),
    _secret("ssl.key.password", "The password of an encrypted key."),
    setting(
        "ssl.truststore.location",
        STRING,
        None,
        "A PEM file with the certificates of authorities: of clients' certificates, and of other nodes' certificates.",
    ),
    setting("ssl.truststore.type", STRING, "PEM", "The form of the trust store (Kafka: JKS).", one_of=_PEM),
    setting(
        "ssl.truststore.certificates",
        STRING,
        None,
        "The certificates of authorities as PEM text, in place of ssl.truststore.location.",
    ),
    setting(
        "ssl.crl.location",
        STRING,
        None,
        "A PEM file with the lists of revoked certificates of all authorities (not in Kafka).",
    ),
    setting(
        "ssl.client.auth",
        STRING,
        "none",
        "Whether clients need a certificate; `requested` lets clients without a certificate in.",
        one_of=tuple(CLIENT_AUTH),
    ),
    setting(
        "ssl.enabled.protocols", LIST, tuple(reversed(TLS_VERSIONS)), "Versions of TLS.", one_of=tuple(TLS_VERSIONS)
    ),
    setting("ssl.cipher.suites", LIST, (), "Cipher suites for TLS 1.2, by OpenSSL's names; empty: OpenSSL's choice."),
    setting(
        "ssl.endpoint.identification.algorithm",
        STRING,
        "https",
        "Whether this node checks host names in the certificates of other nodes; empty: it does not.",
        one_of=("https", ""),
    ),
    setting(
        "ssl.principal.mapping.rules",
        STRING,
        "DEFAULT",
        "Rules that make principals of the subjects of clients' certificates (KIP-371).",
    ),
)

OF_LISTENER: Final = frozenset(row.name for row in TLS_SETTINGS)
"""The settings that may stand behind `listener.name.NAME.`."""

ValueOf = Callable[[str], Value]
"""The value of a setting for one listener."""


def read_tls_config(value_of: ValueOf) -> TlsConfig:
    """The certificates, keys and rules of one listener. Raises KafkaError INVALID_CONFIG."""
    certificate = _pem(value_of, "ssl.keystore.location", "ssl.keystore.certificate.chain")
    key = _text(value_of, "ssl.keystore.key")
    if key is not None and (certificate is None or certificate.text is None):
        raise _refusal("ssl.keystore.key: ssl.keystore.certificate.chain must have the certificate of this key")
    if certificate is not None and certificate.text is not None and key is None:
        raise _refusal("ssl.keystore.certificate.chain: ssl.keystore.key must have the key of this certificate")
    revoked = _text(value_of, "ssl.crl.location")
    versions, ciphers = value_of("ssl.enabled.protocols"), value_of("ssl.cipher.suites")
    assert isinstance(versions, tuple), "a list"
    assert isinstance(ciphers, tuple), "a list"
    return TlsConfig(
        certificate=certificate,
        key=None if key is None else Pem(setting="ssl.keystore.key", text=key),
        key_password=_text(value_of, "ssl.key.password"),
        trusted=_pem(value_of, "ssl.truststore.location", "ssl.truststore.certificates"),
        revoked=None if revoked is None else Pem(setting="ssl.crl.location", location=revoked),
        versions=versions,
        ciphers=ciphers,
        client_auth=_text(value_of, "ssl.client.auth") or "none",
        checks_host=bool(_text(value_of, "ssl.endpoint.identification.algorithm")),
    )


def read_principal_of(value_of: ValueOf) -> PrincipalOf:
    """The rules by which a listener names the principals of certificates. Raises KafkaError INVALID_CONFIG."""
    rules = _text(value_of, "ssl.principal.mapping.rules")
    return whole_name if rules is None or rules.strip() == "DEFAULT" else PrincipalRules(rules)


def _pem(value_of: ValueOf, of_file: str, of_text: str) -> Pem | None:
    location, text = _text(value_of, of_file), _text(value_of, of_text)
    if location is not None and text is not None:
        raise _refusal(f"{of_file} and {of_text}: give either")
    if location is not None:
        return Pem(setting=of_file, location=location)
    return None if text is None else Pem(setting=of_text, text=text)


def _text(value_of: ValueOf, name: str) -> str | None:
    value = value_of(name)
    assert value is None or isinstance(value, str), name
    return value or None


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
