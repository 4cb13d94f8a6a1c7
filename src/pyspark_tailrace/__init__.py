"""Found by Spark itself: it imports every top-level module named `pyspark_*` and registers its `DefaultSource`."""

from tailrace.spark.source import TailraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
