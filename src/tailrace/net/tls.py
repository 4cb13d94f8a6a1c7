"""TLS contexts for both ends of a connection, made of certificates and keys as PEM texts or files.

1. The `ssl` module does the cryptography. TLS 1.2 is the oldest version; peers cannot renegotiate.
2. A context is made anew when a file has changed, and serves new connections: certificates are replaced without a
   restart. While a changed file cannot be used, the old context stays, and the log says why.
3. A client checks the server's certificate and, unless the user says otherwise, the host name in it. A server checks
   the certificates of clients as `ssl.client.auth` says.
"""

import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tailrace.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from datetime import datetime

TLS_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
"""The versions by Kafka's names, the oldest first."""
CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
"""The values of `ssl.client.auth`."""

_LOOK_SECONDS: Final = 1.0
"""The least time between two looks at the files."""
_LONGEST_PEM_BYTES: Final = 4 << 20

_logger = logging.getLogger("tailrace.net")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pem:
    """Certificates or a key in PEM form: a file, or the text itself, which no `repr` shows."""

    setting: str
    """The name of the setting, for messages."""
    location: str | None = None
    text: str | None = field(default=None, repr=False)

    def check(self) -> None:
        """Raises KafkaError INVALID_CONFIG if a file cannot be read, or is no PEM text."""
        text = self.text
        if self.location is not None:
            try:
                if os.stat(self.location).st_size > _LONGEST_PEM_BYTES:
                    raise _refusal(f"{self}: a file of more than {_LONGEST_PEM_BYTES} bytes is no PEM file")
                with open(self.location, encoding="ascii", errors="replace") as file:
                    text = file.read()
            except OSError as fault:
                raise _refusal(f"{self}: {fault.strerror}") from None
        if text is not None and "-----BEGIN " not in text:
            raise _refusal(
                f"{self}: no PEM text. Other stores are converted by, for example,"
                " `openssl pkcs12 -in store.p12 -nodes -out store.pem`"
            )

    def __str__(self) -> str:
        return f"{self.setting}={self.location}" if self.location is not None else self.setting

    @contextmanager
    def as_file(self) -> Iterator[str]:
        """The path of a file with this text: `ssl` reads a key from a file only. A file made for this is readable by
        this user alone, and gone afterwards."""
        if self.location is not None:
            yield self.location
            return
        import tempfile  # with shutil and what shutil needs: few clients give the text

        with tempfile.NamedTemporaryFile(mode="w", encoding="ascii", errors="replace", suffix=".pem") as file:
            file.write(self.text or "")
            file.flush()
            yield file.name


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Certificates, keys and rules of one end. A `repr` shows no key and no password."""

    certificate: Pem | None = None
    """The certificate of this end, with its chain, and perhaps with its key."""
    key: Pem | None = None
    """The key; None: it stands with the certificate."""
    key_password: str | None = field(default=None, repr=False)
    trusted: Pem | None = None
    """The authorities whose certificates are accepted. None: a client takes the authorities of the machine, a server
    accepts no certificate."""
    revoked: Pem | None = None
    """Lists of revoked certificates, of each authority."""
    versions: tuple[str, ...] = tuple(TLS_VERSIONS)
    ciphers: tuple[str, ...] = ()
    """OpenSSL's names of cipher suites for TLS 1.2; empty: OpenSSL's choice."""
    client_auth: str = "none"
    """For a server: `none`, `requested` or `required`."""
    checks_host: bool = True
    """For a client: whether the certificate must have the name of the host."""

    @property
    def pems(self) -> tuple[Pem, ...]:
        """The texts and files of this configuration."""
        return tuple(pem for pem in (self.certificate, self.key, self.trusted, self.revoked) if pem is not None)


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """The context of a listener. Raises KafkaError INVALID_CONFIG that names the wrong setting."""
    if config.certificate is None:
        raise _refusal("ssl.keystore.location: a listener with TLS needs a certificate and its key, in a PEM file")
    verification = CLIENT_AUTH[config.client_auth]
    if verification is not ssl.CERT_NONE and config.trusted is None:
        raise _refusal(
            f"ssl.client.auth={config.client_auth}: ssl.truststore.location must name the authorities of clients'"
            " certificates, in a PEM file"
        )
    context = _context(ssl.PROTOCOL_TLS_SERVER, config)
    context.verify_mode = verification
    context.num_tickets = 0  # clients of Kafka resume no sessions
    return context


def client_context(config: TlsConfig) -> ssl.SSLContext:
    """The context of a client. Raises KafkaError INVALID_CONFIG that names the wrong setting."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, config)
    context.check_hostname = config.checks_host
    if config.trusted is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _context(protocol: Any, config: TlsConfig) -> ssl.SSLContext:
    for pem in config.pems:
        pem.check()
    context = ssl.SSLContext(protocol)
    context.options |= ssl.OP_NO_RENEGOTIATION
    chosen = [version for name, version in TLS_VERSIONS.items() if name in config.versions]
    if not chosen:
        raise _refusal(f"ssl.enabled.protocols: say {' or '.join(TLS_VERSIONS)}, or both")
    context.minimum_version, context.maximum_version = chosen[0], chosen[-1]
    if config.ciphers:
        _choose_ciphers(context, config.ciphers)
    if config.certificate is not None:
        _load_certificate(context, config.certificate, config)
    if config.trusted is not None:
        _load_trusted(context, config.trusted)
    if config.revoked is not None:
        _load_trusted(context, config.revoked)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def _choose_ciphers(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    try:
        context.set_ciphers(":".join(names))
    except ssl.SSLError:
        raise _refusal(
            f"ssl.cipher.suites={','.join(names)}: say OpenSSL's names of suites for TLS 1.2, such as"
            " ECDHE-RSA-AES256-GCM-SHA384; `openssl ciphers` lists them"
        ) from None


def _load_certificate(context: ssl.SSLContext, certificate: Pem, config: TlsConfig) -> None:
    key = config.key or certificate
    was_asked = False

    def password() -> str:
        """Called for an encrypted key. Without this function OpenSSL would ask on the terminal."""
        nonlocal was_asked
        was_asked = True
        return config.key_password or ""

    try:
        with certificate.as_file() as chain_file, key.as_file() as key_file:
            context.load_cert_chain(chain_file, key_file, password=password)
    except ssl.SSLError as fault:
        raise _refusal(f"{certificate}: {_certificate_fault(fault, key, is_encrypted=was_asked)}") from None
    except OSError as fault:
        raise _refusal(f"{certificate}: {fault.strerror}") from None


def _certificate_fault(fault: ssl.SSLError, key: Pem, *, is_encrypted: bool) -> str:
    if fault.reason == "KEY_VALUES_MISMATCH":
        return f"the key ({key}) is not the key of the first certificate"
    if is_encrypted:
        return f"the key ({key}) is encrypted, and ssl.key.password does not fit"
    return f"no certificate with its key in PEM form ({fault.reason or fault})"


def _load_trusted(context: ssl.SSLContext, trusted: Pem) -> None:
    try:
        with trusted.as_file() as file:
            context.load_verify_locations(cafile=file)
    except (ssl.SSLError, OSError) as fault:
        reason = getattr(fault, "reason", None) or fault.strerror
        raise _refusal(f"{trusted}: no certificates in PEM form ({reason})") from None


class TlsContexts:
    """The TLS context for new connections of one end, made anew when a file of the configuration has changed."""

    def __init__(self, config: TlsConfig, *, is_server: bool) -> None:
        """Raises KafkaError INVALID_CONFIG that names the wrong setting."""
        self.config = config
        self._make = server_context if is_server else client_context
        self._files = _state_of(config)
        self._context = self._make(config)
        self._looked_at = 0.0
        self._is_server = is_server
        self.ends: datetime | None = _end_of(config) if is_server else None
        """The end of the validity of a server's certificate, in the context that is used now; None if not known."""

    def current(self, now: float) -> ssl.SSLContext:
        """The context; `now` is a monotonic time in seconds."""
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            files = _state_of(self.config)
            if files != self._files:
                self._files = files
                self._renew()
        return self._context

    def _renew(self) -> None:
        names = ",".join(pem.location for pem in self.config.pems if pem.location is not None)
        try:
            self._context = self._make(self.config)
        except KafkaError as fault:
            _logger.error("event=certificates-not-renewed files=%s reason=%r", names, fault.detail)
        else:
            self.ends = _end_of(self.config) if self._is_server else None
            _logger.info("event=certificates-renewed files=%s", names)


_CLIENT_FAULTS: Final = {
    "WRONG_VERSION_NUMBER": "the server speaks no TLS; is it a plaintext listener (security.protocol)?",
    "RECORD_LAYER_FAILURE": "the server speaks no TLS; is it a plaintext listener (security.protocol)?",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server asks for a certificate of this client (ssl.keystore.location)",
    "TLSV1_ALERT_UNKNOWN_CA": "the server does not trust the certificate of this client (ssl.keystore.location)",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the certificate of this client has expired (ssl.keystore.location)",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the certificate of this client is revoked (ssl.keystore.location)",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the server refuses the certificate of this client (ssl.keystore.location)",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the server does not take this client's versions of TLS",
}
"""Texts for a client by the reasons of OpenSSL."""


def client_fault(fault: ssl.SSLError) -> str:
    """The reason of a failed handshake, with the setting to look at."""
    if isinstance(fault, ssl.SSLCertVerificationError):
        advice = (
            "ssl.endpoint.identification.algorithm= (empty) would accept any name"
            if "match" in fault.verify_message
            else "ssl.truststore.location names the authorities that are trusted"
        )
        return f"the server's certificate is not accepted: {fault.verify_message}; {advice}"
    return _CLIENT_FAULTS.get(fault.reason or "") or fault.reason or str(fault)


def hang_up_hint(contexts: "TlsContexts | None") -> str:
    """The setting of a client that a listener with TLS may miss, if it hangs up before its first answer."""
    if contexts is None:
        return "a listener with TLS does so: security.protocol"
    if contexts.config.certificate is None:
        return "a listener that asks for certificates does so: ssl.keystore.location"
    return "a listener that does not accept the certificate does so: ssl.keystore.location"


def _end_of(config: TlsConfig) -> "datetime | None":
    if config.certificate is None:
        return None
    from tailrace.net.certificate_times import end_of_validity  # clients do not need it

    with config.certificate.as_file() as name, open(name, encoding="ascii", errors="replace") as file:
        return end_of_validity(file.read())


def _state_of(config: TlsConfig) -> tuple[object, ...]:
    """A value that differs when a file was replaced or written."""
    return tuple(_file_state(pem.location) for pem in config.pems if pem.location is not None)


def _file_state(location: str) -> object:
    try:
        state = os.stat(location)
    except OSError as fault:
        return fault.errno
    return state.st_ino, state.st_mtime_ns, state.st_size


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
