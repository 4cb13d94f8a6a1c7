"""One lean Spark session for all tests of a process: it costs seconds to start and 0.5 GB."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from pyspark.sql import DataFrame, SparkSession

from tailrace.client.blocking import Admin, Producer
from tailrace.spark.java import JavaNotFound
from tailrace.spark.session import local_session
from tailrace.testing import Cluster

_numbers = count()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    try:
        session = local_session("tests", brief=True)
    except JavaNotFound as fault:
        pytest.skip(str(fault))
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
    """Send values to one partition of the topic; `timestamp` is for all of them."""

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
