"""The query and the reader of tests of streaming reads."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.streams.stream_reads import SCHEMA, Stream
from tailrace.spark.reading.source_options import parse_source_options
from tailrace.spark.reading.stream_reader import TailraceStreamReader


@pytest.fixture
def stream(spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path) -> Stream:
    return Stream(spark, bootstrap, topic, tmp_path)


@pytest.fixture
def reader(bootstrap: str, topic: str) -> TailraceStreamReader:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
