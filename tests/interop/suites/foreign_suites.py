"""Projects whose source distributions have tests of a broker, and what is expected of a run."""

from pathlib import Path
from typing import NamedTuple

from interop.suites.kafka_python_suite import KAFKA_PYTHON
from interop.suites.source_suite import ForeignSuite, SourceSuite

MEASURED = Path(__file__).with_name("measured.json")
"""The figures of the latest run of scripts/foreign_suites.py."""

_ASSERTIONS = '''"""In the place of a module that the distribution leaves out: the two functions that the tests use."""

import contextlib
import operator


@contextlib.contextmanager
def assert_changes(value, before, after, operator=operator.eq):
    assert operator(value(), before)
    yield
    assert operator(value(), after)


@contextlib.contextmanager
def assert_does_not_change(value, same, operator=operator.eq):
    assert operator(value(), same)
    yield
    assert operator(value(), same)
'''
_ALL = "Test* test_*"


FAUST = ForeignSuite(
    tests=SourceSuite(
        project="faust-streaming",
        version="0.15.3",
        kept="tests",
        folder="tests/integration/broker",
        swap="faust",
        settings="asyncio_mode = auto\n",
        packages=(
            "aiohappyeyeballs==2.7.1",
            "aiohttp==3.14.5",
            "aiohttp-cors==0.8.1",
            "aiosignal==1.4.0",
            "attrs==26.1.0",
            "click==8.3.3",
            "colorlog==6.12.0",
            "croniter==5.0.1",
            "faust-streaming==0.15.3",
            "frozenlist==1.8.0",
            "intervaltree==3.2.1",
            "mode-streaming==0.7.1",
            "multidict==7.2.1",
            "propcache==0.5.4",
            "pytest==7.4.4",  # the tests use a part of pytest that later versions do not have
            "pytest-asyncio==0.21.2",
            "setuptools-scm==10.3.4",
            "six==1.17.0",
            "terminaltables==3.1.10",
            "vcs-versioning==2.6.0",
            "venusian==3.1.0",
            "yarl==1.25.1",
        ),
        plugins=("pytest_asyncio.plugin",),
    ),
    client="aiokafka, confluent-kafka",
    swapped="the broker at `FAUST_TEST_BROKER`, which CI starts as a service",
    collected=2,
    skipped={},
    left_out={},
)
ARROYO = ForeignSuite(
    tests=SourceSuite(
        project="sentry-arroyo",
        version="2.48.0",
        kept="tests",
        folder="tests",
        swap="arroyo",
        files=("backends/test_kafka.py", "test_kip848_e2e.py"),
        added=(("tests/__init__.py", ""), ("tests/assertions.py", _ASSERTIONS)),
        packages=("sentry-arroyo==2.48.0",),
        timeout_s=900,
    ),
    client="confluent-kafka",
    swapped="the broker at `DEFAULT_BROKERS`, a container",
    collected=40,
    skipped={
        "backends/test_kafka.py::TestKafkaStreamsKip848::test_assign_partition_during_pause": (
            "test does not work with incremental rebalancing"
        )
    },
    left_out={},
)
KOMBU = ForeignSuite(
    tests=SourceSuite(
        project="kombu",
        version="5.7.0",
        kept="t",
        folder="t/integration",
        swap="kombu",
        files=("test_kafka.py",),
        settings=f"python_classes = {_ALL}\nmarkers =\n  env: the broker\n  flaky: a test that may have more runs\n",
        packages=("amqp==5.4.2", "kombu==5.7.0", "vine==5.1.0"),
        timeout_s=900,
    ),
    client="confluent-kafka",
    swapped="the fixtures `connection` and `failover_connection`, to a container at `localhost:9092`",
    collected=39,
    skipped={"test_kafka.py::test_KafkaBaseExchangeTypes::test_fanout": "fanout is not implemented"},
    left_out={},
)
STREAMZ = ForeignSuite(
    tests=SourceSuite(
        project="streamz",
        version="0.6.6",
        kept="streamz",
        folder="streamz/tests",
        swap="streamz",
        files=("test_kafka.py",),
        fixed_address="localhost:9092",
        packages=(
            "cloudpickle==3.1.3",
            "dask==2026.8.0",
            "distributed==2026.8.0",
            "flaky==3.8.1",
            "fsspec==2026.9.0",
            "importlib_metadata==10.2.0",
            "Jinja2==3.1.6",
            "lazy-importer==0.1.0",
            "locket==1.0.0",
            "MarkupSafe==3.0.4",
            "msgpack==1.2.4",
            "partd==1.4.2",
            "psutil==7.2.2",
            "tblib==3.2.2",
            "toolz==1.2.0",
            "tornado==6.6.1",
            "zict==3.0.0",
            "zipp==4.1.2",
        ),
        timeout_s=900,
    ),
    client="confluent-kafka",
    swapped="`kafka_service`, a container and a topic, and the tests' `docker exec ... kafka-topics.sh`",
    collected=12,
    skipped={},
    left_out={
        "test_kafka.py::test_from_kafka_thread": "a condition that the test waits for is not met within its 10 s",
        "test_kafka.py::test_kafka_batch_checkpointing_async_nodes_2": (
            "expects that a consumer creates its topic, as consumers of librdkafka once did"
        ),
        "test_kafka.py::test_kafka_checkpointing_auto_offset_reset_latest": (
            "expects 30 records in three partitions; librdkafka puts records of one moment into one partition"
        ),
    },
)
SUITES = (FAUST, ARROYO, KOMBU, STREAMZ)
EVERY_SUITE = (KAFKA_PYTHON, *SUITES)


def arroyo_absent() -> str | None:
    """The reason why the tests of Arroyo cannot be run here; None if they can."""
    return ARROYO.tests.absent()


class PackageWithoutTests(NamedTuple):
    """A package of a project whose repository has tests of a broker, and whose package has none."""

    project: str
    version: str
    has_sources: bool = True
    """Whether there is a source distribution."""


TESTLESS = (
    PackageWithoutTests("aiokafka", "0.14.0"),
    PackageWithoutTests("confluent-kafka", "2.16.1"),
    PackageWithoutTests("faststream", "0.7.8"),
    PackageWithoutTests("quixstreams", "3.28.1", has_sources=False),
)
