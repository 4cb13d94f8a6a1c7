"""kafka-python's own integration tests, in the version that is installed.

The distribution leaves out two files: `test/__init__.py` (without it Python's own package `test` is found) and
`test/service.py`, which starts a broker; ours starts none.
"""

from importlib.metadata import version

from interop.suites.source_suite import ForeignSuite, SourceSuite
from interop.suites.swaps.kafka_python import SETTINGS

_SERVICE = '''"""In the place of the module that starts brokers, which the distribution leaves out."""


class ExternalService:
    """A broker that runs already."""

    def __init__(self, host, port):
        self.host, self.port = host, port


class SpawnedService:
    """A broker of the test's own."""

    def __init__(self, args=None, env=None):
        raise RuntimeError("there is no Apache Kafka to start")
'''

_NO_ACLS = "a node has no ACLs"
_NO_TLS = "needs a broker with TLS"
_SASL = "Testing on external Kafka Broker"
"""The reason of tests that want to start a broker with SASL themselves."""

KAFKA_PYTHON = ForeignSuite(
    tests=SourceSuite(
        project="kafka-python",
        version=version("kafka-python"),
        kept="test",
        folder="test/integration",
        swap="kafka_python",
        added=(("test/__init__.py", ""), ("test/service.py", _SERVICE)),
    ),
    client="itself",
    swapped="the broker at `KAFKA_URI`, in place of `SpawnedService`, which starts Apache Kafka",
    collected=67,
    skipped={
        "test_consumer_integration.py::test_kafka_consumer_offsets_for_time_old": "Requires KAFKA_VERSION < 0.10.1",
        **{
            f"test_sasl_integration.py::{test}[{mechanism}]": _SASL
            for test in ("test_admin", "test_produce_and_consume", "test_client")
            for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
        },
    },
    left_out={
        "test_admin_integration.py::test_create_describe_delete_acls": _NO_ACLS,
        "test_ssl_integration.py::TestSSLConnection::test_ssl_handshake": _NO_TLS,
        "test_ssl_integration.py::TestSSLConnection::test_legacy_kafka_client_ssl": _NO_TLS,
    },
    settings=SETTINGS,
)
"""With the tests of the version in constraints.txt."""


def absent() -> str | None:
    """The reason why the tests cannot be run here; None if they can."""
    return KAFKA_PYTHON.tests.absent()
