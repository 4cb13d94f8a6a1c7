"""The test kit for pipelines of the Spark source and sink: feed a topic, run a query, kill the query, compare rows.

    feed(servers, "orders", ["tea", "milk"])
    with kill_at("write"):
        run = run_available_now(copy, spark, servers, checkpoint=tmp_path / "checkpoint")
    run.restart()
    assert_rows(topic_rows(servers, "copied"), ["milk", "tea"])

For classic sessions and Spark Connect, with the servers and Spark's Python processes on this machine.
"""

from tailrace.testing.feeding import InputRecord, feed
from tailrace.testing.spark.kills import Kills, kill_at
from tailrace.testing.spark.rows import assert_rows, topic_rows
from tailrace.testing.spark.runs import QueryRun, run_available_now

__all__ = ("InputRecord", "Kills", "QueryRun", "assert_rows", "feed", "kill_at", "run_available_now", "topic_rows")
