"""A node for all that is read and written beside Spark's Kafka connector, with the topics that both read."""

from collections.abc import Iterator
from itertools import count

import pytest
from pyspark.sql import SparkSession

from benchmarks.downloads.kafka_jars import connector_absent
from spark.connector import topics
from spark.connector.formats import CONNECTOR, OURS, Format
from tailrace.client.blocking import Admin
from tailrace.testing import Cluster

_numbers = count()


@pytest.fixture(scope="session", autouse=True)
def _connector() -> None:
    if why := connector_absent():
        pytest.skip(why)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster(config=topics.CONFIG) as cluster, topics.written(cluster):
        yield cluster


@pytest.fixture(scope="session")
def bootstrap(cluster: Cluster) -> str:
    return cluster.bootstrap_servers


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as admin:
        yield admin


@pytest.fixture(scope="session")
def ours(spark: SparkSession, bootstrap: str) -> Format:
    return Format(OURS, spark, bootstrap)


@pytest.fixture(scope="session")
def connector(spark: SparkSession, bootstrap: str) -> Format:
    return Format(CONNECTOR, spark, bootstrap)


@pytest.fixture
def topic(admin: Admin) -> str:
    """A new topic of two partitions."""
    name = f"new-{next(_numbers)}"
    admin.create_topics({name: 2})
    return name
