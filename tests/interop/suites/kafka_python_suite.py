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

    def dump_logs(self):
        """The kit shows the logs of a node."""


class SpawnedService:
    """A broker of the test's own."""

    def __init__(self, args=None, env=None):
        raise RuntimeError("there is no Apache Kafka to start")
'''

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
    swapped="each broker of `KafkaFixture.instance`, which starts Apache Kafka with the test's transport",
    collected=67,
    skipped={
        "test_consumer_integration.py::test_kafka_consumer_offsets_for_time_old": "Requires KAFKA_VERSION < 0.10.1",
    },
    left_out={},
    settings=SETTINGS,
)
"""With the tests of the version in constraints.txt."""


def absent() -> str | None:
    """The reason why the tests cannot be run here; None if they can."""
    return KAFKA_PYTHON.tests.absent()
