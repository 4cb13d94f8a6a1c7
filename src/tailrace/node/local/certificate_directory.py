"""An authority and its certificates as PEM files in a directory: `tailrace certs init` and `tailrace up --secure`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.node.local.certificates import NODE_DAYS, CertificateAuthority, KeyPair

AUTHORITY: Final = "ca.pem"
AUTHORITY_KEY: Final = "ca-key.pem"
_SECRET, _PUBLIC = 0o600, 0o644


class CertificateDirectory:
    """The PEM files of one authority. Files that are there are never replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._authority: CertificateAuthority | None = None
        self.is_new = False
        """Whether this object has made the authority."""

    def found(self) -> None:
        """Read the authority of the directory, or make an authority. Raises KafkaError INVALID_REQUEST."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if (self.path / AUTHORITY_KEY).exists():
                certificate, key = ((self.path / name).read_text() for name in (AUTHORITY, AUTHORITY_KEY))
                self._authority = CertificateAuthority(KeyPair(certificate=certificate, key=key))
                return
            authority = CertificateAuthority.found(f"authority of {self.path.resolve().name}")
        except ImportError:
            detail = "making certificates needs a package more: pip install 'tailrace[certs]', in a checkout '.[certs]'"
            raise KafkaError(ErrorCode.INVALID_REQUEST, detail) from None
        except (OSError, ValueError) as fault:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the authority in {self.path}: {fault}") from None
        write_new(self.path / AUTHORITY, authority.pair.certificate, _PUBLIC)
        write_new(self.path / AUTHORITY_KEY, authority.pair.key)
        self._authority, self.is_new = authority, True

    def issue(self, file_name: str, common_name: str, hosts: Sequence[str] = (), *, days: int = NODE_DAYS) -> Path:
        """Write key and certificate to a new file. `hosts`: as of `CertificateAuthority.issue`."""
        assert self._authority is not None, "`found` comes first"
        pair = self._authority.issue(common_name, hosts=tuple(dict.fromkeys(hosts)), days=days)
        write_new(self.path / file_name, pair.keystore)
        return self.path / file_name


def write_new(path: Path, text: str, mode: int = _SECRET) -> None:
    """Make the file, which no other user could read at any time if the mode says so. Raises OSError if it is there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(text)
