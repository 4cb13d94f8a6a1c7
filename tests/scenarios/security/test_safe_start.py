"""A node that other machines can reach starts without --insecure when it is secured. `127.1` is a loopback address
that a node takes for a name: so the test opens nothing to other machines."""

import asyncio
from pathlib import Path

import pytest

from tailrace import Admin, NewTopic
from tailrace.node.node import Node
from tailrace.node.settings.config import NodeConfig
from testkit.nodes.certificates import TeamCertificates

HOST = "127.1"
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="node" password="of-the-nodes";'


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SSL"])
def test_a_secured_node_that_others_reach_serves_its_clients(tmp_path: Path, protocol: str) -> None:
    team = TeamCertificates(tmp_path)
    certificate = tmp_path / "of-host.pem"
    certificate.touch(mode=0o600)
    certificate.write_text(team.authority.issue("node", hosts=[HOST]).keystore)
    config = NodeConfig(
        {
            "listeners": f"CLIENTS://{HOST}:0",
            "listener.security.protocol.map": f"CLIENTS:{protocol}",
            "ssl.keystore.location": str(certificate),
            "ssl.truststore.location": str(team.trusted),
            "ssl.client.auth": "required",
            "sasl.jaas.config": JAAS,
            "authorizer.class.name": "StandardAuthorizer",
            "super.users": "User:node;User:CN=node",
            "log.dirs": str(tmp_path / "data"),
        }
    )
    assert not config.flag("listener.insecure.allow")

    async def live() -> list[str]:
        node = Node(config, on_fatal=lambda error: pytest.fail(str(error)))
        await node.start()
        try:
            return await asyncio.to_thread(topics_made, node.advertised[0].port)
        finally:
            await node.stop()

    def topics_made(port: int) -> list[str]:
        settings = {
            "bootstrap.servers": f"{HOST}:{port}",
            "security.protocol": protocol,
            "ssl.truststore.location": str(team.trusted),
            "ssl.keystore.location": str(certificate),
        }
        if protocol == "SASL_SSL":
            settings |= {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": JAAS}
        with Admin(settings) as admin:
            admin.create_topics([NewTopic("safe", partitions=1)])
            return [topic.name for topic in admin.list_topics()]

    assert asyncio.run(live()) == ["safe"]
