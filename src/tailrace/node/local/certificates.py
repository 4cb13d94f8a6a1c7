"""A small private certificate authority: keys and certificates of nodes and clients as PEM.

`cryptography` makes keys and certificates (`pip install 'tailrace[certs]'`); a node itself needs nothing but `ssl`.
Keys are of the curve P-256.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY_DAYS: Final = 3_650
NODE_DAYS: Final = 365
_EARLIER: Final = timedelta(hours=1)
"""Certificates are valid from an hour ago on: clocks of machines differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate with its key, both as PEM text. A `repr` does not show the key."""

    certificate: str
    key: str = field(repr=False)

    @property
    def keystore(self) -> str:
        """Key and certificate in one text, as `ssl.keystore.location` expects."""
        return self.key + self.certificate


class CertificateAuthority:
    """Issues certificates with one key."""

    def __init__(self, pair: KeyPair) -> None:
        """`pair`: of the authority. Raises ValueError if the texts cannot be read."""
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        self.pair = pair
        self._certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
        self._key: Any = load_pem_private_key(pair.key.encode(), password=None)

    @classmethod
    def found(cls, name: str, *, days: int = AUTHORITY_DAYS) -> Self:
        """A new authority."""
        from cryptography import x509

        key, subject = _new_key(), _name_of(name)
        builder = _builder(
            subject, subject, key, datetime.now(UTC) - _EARLIER, datetime.now(UTC) + timedelta(days=days)
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(for_authority=True), critical=True)
        return cls(_signed(builder, key, key))

    def issue(
        self, name: str, *, hosts: Sequence[str] = (), days: float = NODE_DAYS, begins: datetime | None = None
    ) -> KeyPair:
        """A certificate for the common name. `hosts`: names and IP addresses of a node; a client needs none. `begins`:
        the time from which on the certificate is valid, an hour ago by default."""
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = _new_key()
        first = datetime.now(UTC) - _EARLIER if begins is None else begins
        builder = _builder(
            _name_of(name), self._certificate.subject, key, first, first + _EARLIER + timedelta(days=days)
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(for_authority=False), critical=True)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            uses.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)  # a node is also a client of other nodes
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False
            )
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        return _signed(builder, key, self._key)

    def revocations(self, revoked: Sequence[KeyPair]) -> str:
        """The list of revoked certificates, as PEM text, valid for a year."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding

        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._certificate.subject)
        builder = builder.last_update(now - _EARLIER).next_update(now + timedelta(days=NODE_DAYS))
        for pair in revoked:
            number = x509.load_pem_x509_certificate(pair.certificate.encode()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now - _EARLIER).build()
            builder = builder.add_revoked_certificate(entry)
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(Encoding.PEM).decode()


def _new_key() -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name_of(common_name: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: "x509.Name", issuer: "x509.Name", key: "EllipticCurvePrivateKey", first: datetime, last: datetime
) -> "x509.CertificateBuilder":
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(first)
        .not_valid_after(last)
    )


def _usage(*, for_authority: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not for_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=for_authority,
        crl_sign=for_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: "x509.CertificateBuilder", key: "EllipticCurvePrivateKey", signer: Any) -> KeyPair:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    certificate = builder.sign(signer, hashes.SHA256())
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair(certificate=certificate.public_bytes(Encoding.PEM).decode(), key=text.decode())
