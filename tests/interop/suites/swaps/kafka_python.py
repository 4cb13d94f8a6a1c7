"""kafka-python: a node in the place of each broker that a test starts, with the settings that the tests bring along.

There is a node for each transport and mechanism. It starts when a test first wants the node.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest

from tailrace import Admin
from tailrace.testing import Cluster
from testkit.nodes.certificates import TeamCertificates

SETTINGS: Final = {
    "node.id": "0",
    "num.partitions": "4",
    "offsets.topic.num.partitions": "2",
    "group.min.session.timeout.ms": "1000",
    "advertised.listeners": "PLAINTEXT://127.0.0.1:0",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
_PLAINTEXT: Final = "PLAINTEXT"
_LOGIN: Final = "org.apache.kafka.common.security"
_MODULES: Final = {"PLAIN": f"{_LOGIN}.plain.PlainLoginModule"}
_SCRAM_MODULE: Final = f"{_LOGIN}.scram.ScramLoginModule"


class Transport(NamedTuple):
    """The protocol of a broker's listener, with the mechanism of SASL if the protocol has SASL."""

    protocol: str
    mechanism: str | None

    def settings(self, certificates: TeamCertificates, user: str, password: str) -> dict[str, str]:
        """The settings of the node, in which this user's password stands."""
        found = dict(SETTINGS)
        if self.protocol != _PLAINTEXT:
            found["listener.security.protocol.map"] = f"PLAINTEXT:{self.protocol},CONTROLLER:PLAINTEXT"
        if self.protocol.endswith("SSL"):
            found["ssl.keystore.location"] = str(certificates.node)
        if self.mechanism is not None:
            module = _MODULES.get(self.mechanism, _SCRAM_MODULE)
            known = f' user_{user}="{password}"' if self.mechanism == "PLAIN" else ""
            found["sasl.jaas.config"] = f'{module} required username="{user}" password="{password}"{known};'
            found["sasl.enabled.mechanisms"] = self.mechanism
            found["sasl.mechanism.inter.broker.protocol"] = self.mechanism
            found["listener.insecure.allow"] = "true"  # the tests want PLAIN without TLS
        return found


def pytest_load_initial_conftests() -> None:
    # With 4.0 and later the tests look for no ZooKeeper.
    os.environ |= {"KAFKA_VERSION": "4.1.0", "KAFKA_ROOT": os.getcwd()}


@pytest.fixture(scope="session")
def tailrace_cluster() -> Iterator[Cluster]:
    with Cluster(config=SETTINGS) as cluster:
        yield cluster


@pytest.fixture(scope="session", autouse=True)
def swapped(tailrace_cluster: Cluster | SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    from test.integration.fixtures import KafkaFixture  # type: ignore[import-not-found]

    directory = tmp_path_factory.mktemp("certificates")
    certificates = TeamCertificates(directory)
    certificates.trusted.with_name("ca-cert").write_bytes(certificates.trusted.read_bytes())
    nodes: dict[Transport, Cluster | SimpleNamespace] = {Transport(_PLAINTEXT, None): tailrace_cluster}
    with ExitStack() as stack:

        def node(wanted: Transport) -> Cluster | SimpleNamespace:
            if wanted not in nodes:
                if not isinstance(tailrace_cluster, Cluster):
                    pytest.skip("the other broker has a listener without TLS and SASL")
                settings = wanted.settings(certificates, KafkaFixture.broker_user, KafkaFixture.broker_password)
                nodes[wanted] = stack.enter_context(Cluster(config=settings))
            return nodes[wanted]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(KafkaFixture, "instance", _starter(KafkaFixture, node, directory))
            yield


def _starter(
    fixture: type[Any], node: Callable[[Transport], Cluster | SimpleNamespace], directory: Path
) -> Callable[..., Any]:
    class SwappedBroker(fixture):  # type: ignore[misc]
        """A broker of the tests that runs already."""

        def get_topic_names(self) -> list[str]:
            """The names that Kafka's tool would print."""
            with Admin(_settings_of_admin(self._enrich_client_params({}))) as admin:
                return [topic.name for topic in admin.list_topics()]

    def instance(
        number: int, *, transport: str = _PLAINTEXT, sasl_mechanism: str | None = None, partitions: int = 4, **_: object
    ) -> SwappedBroker:
        host, _colon, port = node(Transport(transport, sasl_mechanism)).bootstrap_servers.rpartition(":")
        broker = SwappedBroker(
            host,
            int(port),
            number,
            transport=transport,
            sasl_mechanism=sasl_mechanism,
            partitions=partitions,
            external=True,
        )
        broker.ssl_dir = str(directory)
        return broker

    return instance


def _settings_of_admin(settings: Mapping[str, Any]) -> dict[str, Any]:
    unknown = {"ssl_check_hostname"}
    return {name: value for name, value in settings.items() if name not in unknown}
