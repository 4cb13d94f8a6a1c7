"""The test kit for pipelines of the Spark source and sink: feed a topic, and compare rows.

    feed(servers, "orders", ["tea", "milk"])
    assert_rows(topic_rows(servers, "copied"), ["milk", "tea"])
"""

from tailrace.testing.spark.feeding import InputRecord, feed
from tailrace.testing.spark.rows import assert_rows, topic_rows

__all__ = ("InputRecord", "assert_rows", "feed", "topic_rows")
