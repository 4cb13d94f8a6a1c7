"""The security of a cluster on one machine: TLS by a private authority, SASL, an authorizer, and a first user.

    DIRECTORY/security/ca.pem, ca-key.pem     the authority
    DIRECTORY/security/node.pem               key and certificate of all nodes
    DIRECTORY/security/nodes.jaas             the user of the nodes
    DIRECTORY/security/client.properties      the settings of a client that is the super user `admin`

Files that are there are used again. A node's certificate that was removed is issued anew by the same authority.
"""

import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.security.scram import MOST_ITERATIONS, ScramMechanism
from tailrace.net.jaas import parse_jaas
from tailrace.node.local.certificate_directory import AUTHORITY, CertificateDirectory, write_new
from tailrace.storage.files import OsFiles

CLIENT_LISTENER: Final = "SASL_SSL"
"""The name of the listeners for clients, which is their protocol too."""
SUPER_USER: Final = "admin"
_NODE_USER: Final = "node"
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_MECHANISM: Final = ScramMechanism.SHA_512
_LOOPBACKS: Final = ("localhost", "127.0.0.1", "::1")


class ClusterSecurity:
    """The files of one cluster."""

    def __init__(self, directory: Path) -> None:
        """`directory`: of the cluster."""
        self._path = directory.absolute() / "security"

    @property
    def exists(self) -> bool:
        """Whether the cluster was founded with security."""
        return self._users.exists()

    @property
    def client_file(self) -> Path:
        """The settings of clients, in Kafka's form."""
        return self._path / "client.properties"

    @property
    def authority_file(self) -> Path:
        return self._path / AUTHORITY

    @property
    def _users(self) -> Path:
        return self._path / "nodes.jaas"

    def make(self, host: str) -> None:
        """Make the files that are not there, for nodes that listen on `host`. Raises KafkaError INVALID_REQUEST."""
        certificates = CertificateDirectory(self._path)
        if not (self._path / "node.pem").exists():
            certificates.found()
            certificates.issue("node.pem", "node", (host, *_LOOPBACKS))
        try:
            if not self.client_file.exists():
                write_new(self.client_file, self._client_text())
            if not self._users.exists():
                write_new(self._users, _login(_NODE_USER, secrets.token_urlsafe(32)) + "\n")
        except OSError as fault:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{self._path}: {fault.strerror}") from None

    def settings(self) -> dict[str, str]:
        """The settings of every node."""
        return {
            "listener.security.protocol.map": f"{CLIENT_LISTENER}:SASL_SSL,CONTROLLER:SASL_SSL",
            "ssl.keystore.location": str(self._path / "node.pem"),
            "ssl.truststore.location": str(self.authority_file),
            "sasl.jaas.config": f"file:{self._users}",
            "authorizer.class.name": "StandardAuthorizer",
            "super.users": f"User:{_NODE_USER};User:{SUPER_USER}",
        }

    def client_settings(self) -> Mapping[str, str]:
        """The settings of a client of Tailrace that is the super user, without addresses."""
        from tailrace.node.settings.properties import parse_properties

        settings = parse_properties(self.client_file.read_text())
        settings.pop("ssl.truststore.type", None)  # for clients of Kafka: here PEM is the only type
        return {**settings, "ssl.truststore.location": str(self.authority_file)}

    def found_users(self, data_directories: Iterable[Path]) -> None:
        """Write the super user into the data directories of the controllers, which have not run yet."""
        from tailrace.node.founding_users import FoundingUsers, upsertion_of_password

        password = parse_jaas(self.client_settings()["sasl.jaas.config"]).password.reveal()
        user = upsertion_of_password(SUPER_USER, password, mechanism=_MECHANISM, iterations=MOST_ITERATIONS)
        for data in data_directories:
            data.mkdir(exist_ok=True)
            FoundingUsers(str(data), files=OsFiles()).set(user)

    def _client_text(self) -> str:
        login = _login(SUPER_USER, secrets.token_urlsafe(32))
        return (
            f"# The super user {SUPER_USER}: tailrace topics list --command-config {self.client_file}\n"
            "security.protocol=SASL_SSL\n"
            f"sasl.mechanism={_MECHANISM.sasl_name}\n"
            f"sasl.jaas.config={login}\n"
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.authority_file}\n"
        )


def _login(user: str, password: str) -> str:
    return f'{_MODULE} required username="{user}" password="{password}";'
