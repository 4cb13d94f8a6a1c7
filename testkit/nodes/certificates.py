"""The certificates of a team for tests: an authority, a node on loopback addresses, and clients."""

from pathlib import Path

from tailrace.node.local.certificates import CertificateAuthority


class TeamCertificates:
    """An authority and its certificates, as PEM files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.authority = CertificateAuthority.found("team")
        self.trusted = self._written("ca", self.authority.pair.certificate)
        self.node = self._written(
            "node", self.authority.issue("node", hosts=["127.0.0.1", "localhost", "::1"]).keystore
        )

    def client(self, name: str) -> Path:
        """The key and the certificate of a client, in one file."""
        return self._written(name, self.authority.issue(name).keystore)

    def key_and_certificate(self, name: str) -> tuple[Path, Path]:
        """The key and the certificate of a client, in two files."""
        pair = self.authority.issue(name)
        return self._written(f"{name}-key", pair.key), self._written(f"{name}-certificate", pair.certificate)

    def renew_node(self) -> None:
        """Replace the node's certificate with a new certificate."""
        self._written("node", self.authority.issue("node", hosts=["127.0.0.1", "localhost", "::1"]).keystore)

    def settings(self, *, client_auth: str = "required") -> dict[str, str]:
        """The settings of nodes whose listeners all have TLS, whatever their names are."""
        return {
            "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:SSL",
            "ssl.keystore.location": str(self.node),
            "ssl.truststore.location": str(self.trusted),
            "ssl.client.auth": client_auth,
        }

    def _written(self, name: str, text: str) -> Path:
        path = self._directory / f"{name}.pem"
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.chmod(0o600)
        return fresh.replace(path)
