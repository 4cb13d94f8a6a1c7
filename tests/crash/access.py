"""Nodes with TLS, SCRAM and ACLs, and the settings of their clients: programs of a load have the settings from here.

The test and the programs that it starts read the same variable of the environment. Without the variable, clients have
the addresses alone.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tailrace.testing import Cluster
from testkit.nodes.certificates import TeamCertificates

VARIABLE: Final = "CRASH_CLIENT_SETTINGS"
_ANSWERED_WITHIN_S: Final = 60
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_NODE, _NODES_SECRET = "node", "node-secret"
_USER, _USERS_SECRET = "alice", "alice-secret"
_RULES: Final = (
    (ResourceType.TOPIC, "*", AclOperation.ALL),
    (ResourceType.GROUP, "*", AclOperation.READ),
    (ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE),
    (ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE),
)


def client_settings(servers: str) -> dict[str, Any]:
    """The settings of a client of these servers, ours or librdkafka's."""
    return {"bootstrap.servers": servers, **json.loads(os.environ.get(VARIABLE, "{}"))}


class SecuredNodes:
    """The settings of nodes that let in users of SCRAM over TLS alone, and a user with rights for a load."""

    def __init__(self, directory: Path) -> None:
        self._certificates = TeamCertificates(directory)
        self.config = {
            **self._certificates.settings(client_auth="none"),
            "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "sasl.jaas.config": f'{_MODULE} required username="{_NODE}" password="{_NODES_SECRET}";',
            "authorizer.class.name": "StandardAuthorizer",
            "super.users": f"User:{_NODE}",
        }

    def settings(self, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        """The settings of a client that is this user."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self._certificates.trusted),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def administrator(self, cluster: Cluster) -> AdminClient:
        """A client with all rights."""
        return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **self.settings(_NODE, _NODES_SECRET)})

    def add_user(self, cluster: Cluster, patch: pytest.MonkeyPatch) -> None:
        """Make a user of the metadata log with its rules. `client_settings` is for this user from now on."""
        admin = self.administrator(cluster)
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096)
        wanted = UserScramCredentialUpsertion(_USER, info, _USERS_SECRET.encode())
        admin.alter_user_scram_credentials([wanted])[_USER].result(_ANSWERED_WITHIN_S)
        rules = [
            AclBinding(
                kind, name, ResourcePatternType.LITERAL, f"User:{_USER}", "*", operation, AclPermissionType.ALLOW
            )
            for kind, name, operation in _RULES
        ]
        for addition in admin.create_acls(rules).values():
            addition.result(_ANSWERED_WITHIN_S)
        patch.setenv(VARIABLE, json.dumps(self.settings(_USER, _USERS_SECRET, "SCRAM-SHA-256")))
