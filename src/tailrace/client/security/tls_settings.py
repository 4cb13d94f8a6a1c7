"""Settings of encrypted connections, with Kafka's names; certificates and keys are PEM (KIP-651)."""

from dataclasses import dataclass, fields
from typing import Any, Self

from tailrace.client.setting_fields import alias, invalid, secret
from tailrace.model.security.security_protocol import NAMES, SecurityProtocol
from tailrace.net.secrets import Secret
from tailrace.net.tls import TLS_VERSIONS, Pem, TlsConfig, TlsContexts


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """The settings of TLS that every client has."""

    security_protocol: str = "PLAINTEXT"
    """The protection of connections: PLAINTEXT, SSL for TLS, SASL_SSL, or SASL_PLAINTEXT without encryption."""
    ssl_truststore_location: str | None = None
    """A PEM file with the authorities whose certificates of servers are accepted; without it, those of the machine."""
    ssl_truststore_certificates: str | None = None
    """The certificates of these authorities as PEM text, in place of the file."""
    ssl_keystore_location: str | None = None
    """A PEM file with this client's key, its certificate and the chain of the certificate, for servers that ask for a
    certificate. Files are read again when they change."""
    ssl_keystore_certificate_chain: str | None = None
    """The client's certificate and its chain as PEM text, in place of the file."""
    ssl_keystore_key: str | None = secret()
    """The key of this certificate as PEM text; or env:NAME or file:PATH of the text."""
    ssl_certificate_location: str | None = None
    """A PEM file with the client's certificate alone, as in librdkafka; its key is in ssl_key_location."""
    ssl_key_location: str | None = None
    """A PEM file with the key of ssl_certificate_location."""
    ssl_key_password: str | None = secret()
    """The password of an encrypted key; or env:NAME or file:PATH, where the password stands."""
    ssl_crl_location: str | None = None
    """A PEM file with the lists of revoked certificates of all authorities."""
    ssl_endpoint_identification_algorithm: str = "https"
    """Whether the server's certificate must have the name of the host: `https`, or empty for any name."""
    ssl_enabled_protocols: str = "TLSv1.3,TLSv1.2"
    """The versions of TLS, behind commas."""
    ssl_cipher_suites: str | None = None
    """Cipher suites for TLS 1.2 by OpenSSL's names, behind commas; without a value, OpenSSL's choice."""
    ssl_ca_location: str | None = alias("ssl_truststore_location")
    ssl_cafile: str | None = alias("ssl_truststore_location")
    ssl_ca_pem: str | None = alias("ssl_truststore_certificates")
    ssl_certfile: str | None = alias("ssl_certificate_location")
    ssl_certificate_pem: str | None = alias("ssl_keystore_certificate_chain")
    ssl_keyfile: str | None = alias("ssl_key_location")
    ssl_key_pem: str | None = alias("ssl_keystore_key")
    ssl_password: str | None = alias("ssl_key_password")

    def check_tls(self) -> None:
        """Check the settings that belong together. Raises KafkaError INVALID_CONFIG."""
        protocol = self.security_protocol.upper()
        object.__setattr__(self, "security_protocol", protocol)
        if protocol not in NAMES:
            raise invalid(f"security.protocol {protocol!r}; say {', '.join(NAMES)}")
        given = [name for name, value in vars(self).items() if name.startswith("ssl_") and value not in _UNSET]
        if not SecurityProtocol[protocol].has_tls and given:
            names = ", ".join(name.replace("_", ".") for name in given)
            raise invalid(
                f"{names}: this needs security.protocol SSL or SASL_SSL; with {protocol} nothing is encrypted"
            )
        if self.ssl_endpoint_identification_algorithm not in ("https", ""):
            wrong = self.ssl_endpoint_identification_algorithm
            raise invalid(f"ssl.endpoint.identification.algorithm {wrong!r}; say 'https', or '' for any name")
        if unknown := [version for version in _words(self.ssl_enabled_protocols) if version not in TLS_VERSIONS]:
            raise invalid(f"ssl.enabled.protocols {unknown[0]!r}; say {' or '.join(TLS_VERSIONS)}, or both")
        self._check_pairs()

    def _check_pairs(self) -> None:
        pairs = (
            ("ssl_keystore_certificate_chain", "ssl_keystore_key"),
            ("ssl_certificate_location", "ssl_key_location"),
        )
        for certificate, key in pairs:
            if getattr(self, key) is not None and getattr(self, certificate) is None:
                raise invalid(f"{_dotted(key)}: {_dotted(certificate)} must have the certificate of this key")
        if self.ssl_keystore_certificate_chain is not None and self.ssl_keystore_key is None:
            raise invalid("ssl.keystore.certificate.chain: ssl.keystore.key must have the key of this certificate")
        for names in (
            ("ssl_keystore_location", "ssl_keystore_certificate_chain", "ssl_certificate_location"),
            ("ssl_truststore_location", "ssl_truststore_certificates"),
        ):
            if len(both := [name for name in names if getattr(self, name) is not None]) > 1:
                raise invalid(f"{_dotted(both[0])} and {_dotted(both[1])}: give either")

    def tls_contexts(self) -> TlsContexts | None:
        """The contexts of connections; None for PLAINTEXT. Reads the files. Raises KafkaError INVALID_CONFIG."""
        if not SecurityProtocol[self.security_protocol].has_tls:
            return None
        config = TlsConfig(
            certificate=self._pem("ssl_keystore_location")
            or self._pem("ssl_certificate_location")
            or self._pem("ssl_keystore_certificate_chain"),
            key=self._pem("ssl_key_location") or self._pem("ssl_keystore_key"),
            key_password=None if self.ssl_key_password is None else Secret(self.ssl_key_password).reveal(),
            trusted=self._pem("ssl_truststore_location") or self._pem("ssl_truststore_certificates"),
            revoked=self._pem("ssl_crl_location"),
            versions=_words(self.ssl_enabled_protocols),
            ciphers=_words(self.ssl_cipher_suites or ""),
            checks_host=bool(self.ssl_endpoint_identification_algorithm),
        )
        return TlsContexts(config, is_server=False)

    def _pem(self, name: str) -> Pem | None:
        value = getattr(self, name)
        if not value:
            return None
        if name.endswith("_location"):
            return Pem(setting=_dotted(name), location=value)
        return Pem(setting=_dotted(name), text=Secret(value).reveal())

    @classmethod
    def is_elsewhere(cls, name: str, given: str) -> bool:
        """Whether the secret with this name is a reference to a text elsewhere."""
        return Secret(given).is_reference

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickle. Raises TypeError for a secret in plain text."""
        for setting in fields(self):
            given = getattr(self, setting.name)
            if given is not None and setting.metadata.get("is_secret") and not self.is_elsewhere(setting.name, given):
                raise TypeError(
                    f"{_dotted(setting.name)} is not pickled; give it as env:NAME or file:PATH, which is read where it"
                    " is used"
                )
        return dict(vars(self))


_UNSET = (None, "https", "TLSv1.3,TLSv1.2")
"""The values of settings that were not given."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _dotted(name: str) -> str:
    return name.replace("_", ".")
