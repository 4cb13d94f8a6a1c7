"""A lean Spark session for all tests of a process: the session costs seconds to start and 0.5 GB.

The session has the jars of Spark's Kafka connector where Maven has brought them, for the tests beside the connector.

With SPARK_TEST_SESSION=connect in the environment the session is one of Spark Connect.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from types import MappingProxyType

import pytest
from pyspark.sql import DataFrame, SparkSession

from benchmarks.downloads.fetching import alone
from benchmarks.downloads.kafka_jars import CONNECTOR_JARS, connector_absent
from tailrace.client.blocking import Admin, Producer
from tailrace.spark.java import JavaNotFound, ensure_java
from tailrace.spark.session import BRIEF, LEAN, LOOPBACK, local_session
from tailrace.testing import Cluster

_numbers = count()

BESIDE_CONNECTOR = Path(__file__).parent / "connector"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch the connector before the first test, whose time is not for that."""
    if not session.config.option.collectonly and any(BESIDE_CONNECTOR in item.path.parents for item in session.items):
        with alone(CONNECTOR_JARS.parent):
            connector_absent()


def is_connect() -> bool:
    """Whether the tests of this process use Spark Connect, which no classic session may share a process with."""
    return os.environ.get("SPARK_TEST_SESSION") == "connect"


def connect_session(settings: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """A session of a Connect server in a JVM of this process, on a free port if SPARK_TESTING is in the environment.

    `settings` are further settings of the server.
    """
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.remote("local[2]")
    here = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.log.level": "ERROR"}
    for key, value in {**LEAN, **LOOPBACK, **BRIEF, **here, **settings}.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # The server takes the settings when it starts; then Connect sets each once more, and warns of those it cannot.
        warnings.filterwarnings("ignore", "Failed to set", UserWarning)
        return builder.getOrCreate()


def _classic_session() -> SparkSession:
    jars = ",".join(map(str, sorted(CONNECTOR_JARS.glob("*.jar"))))
    return local_session("tests", cores=2, brief=True, **{"spark.jars": jars})


LONGEST_WAIT_S = 100.0


def _has_free_core() -> bool:
    """Whether a new process has a fair part of a core; unknown counts as yes.

    The workers of the lane that computes, one more than there are cores, do not count: they give way.
    """
    try:
        running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except OSError:
        return True
    return running <= 3 * (os.cpu_count() or 1) + 1


@pytest.fixture(autouse=True)
def _free_core() -> None:
    """A test begins when there is a core for it, or after a long wait.

    Spark gives the new Python process of a source ten seconds, and has no setting for this time. A process takes 0.7 s
    of a core to start, and there are tests that take all cores at the same time.
    """
    deadline = time.monotonic() + LONGEST_WAIT_S
    while not _has_free_core() and time.monotonic() < deadline:
        time.sleep(0.2)


@pytest.fixture(scope="session")
def java() -> None:
    """Java, for tests that start a process of Spark's. A strict run, such as that of CI, does not take its absence."""
    try:
        ensure_java()
    except JavaNotFound as fault:
        pytest.skip(str(fault))


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    session = connect_session() if is_connect() else _classic_session()
    yield session
    session.stop()


@pytest.fixture
def bootstrap(tailrace_cluster: Cluster) -> str:
    return tailrace_cluster.bootstrap_servers


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin) -> str:
    """A new topic of three partitions."""
    name = f"spark-{next(_numbers)}"
    admin.create_topics({name: 3})
    return name


@pytest.fixture
def send(bootstrap: str, topic: str) -> Callable[..., None]:
    """Send values to one partition of the topic; `timestamp` is for all the records."""

    def send(values: range, *, partition: int = 0, timestamp: int | None = None) -> None:
        with Producer(bootstrap) as producer:
            for value in values:
                text = str(value).encode()
                producer.send(topic, text, key=b"k" + text, partition=partition, timestamp=timestamp)
            producer.flush()

    return send


@pytest.fixture
def load(spark: SparkSession, bootstrap: str, topic: str) -> Callable[..., DataFrame]:
    """A batch read of the topic with these options."""

    def load(schema: str | None = None, **options: object) -> DataFrame:
        reader = spark.read.format("tailrace").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return (reader.schema(schema) if schema else reader).load()

    return load
