"""The lines of `make bench`: each line measures one subject on all servers, and gives one section."""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.lines.clusters import end_to_end, failover, racks
from benchmarks.lines.key_ranges import (
    elastic,
    handlers,
    joins,
    key_filter,
    key_readers,
    lanes,
    range_commits,
    views,
)
from benchmarks.lines.metadata import catch_up, compaction, fence_stall, fencing, snapshots
from benchmarks.lines.node import (
    frames,
    large_requests,
    latency,
    partitions,
    record_walk,
    records,
    requests,
    start,
    take_over,
    transactional_produce,
)
from benchmarks.lines.sessions import fetch_sessions, idle_cores, idle_writes, session_requests
from benchmarks.lines.spark import exactly_once_write
from benchmarks.lines.spark import idle as spark_idle
from benchmarks.lines.spark import key_ranges as spark_key_ranges
from benchmarks.lines.spark import latency as spark_latency
from benchmarks.lines.spark import read as spark_read
from benchmarks.lines.spark import stream as spark_stream
from benchmarks.results.figures import Section
from benchmarks.results.rounds import Rounds

KIP_227, KIP_392, KIP_630, KIP_X = "kip-227", "kip-392", "kip-630", "kip-x"


class Line(NamedTuple):
    """A measurement and its method; `measure` takes the rounds and the requested size."""

    help: str
    measure: Callable[[Rounds, int], Section]
    rounds: int = 5
    warm_ups: int = 3
    """The number of warm-up rounds. A JVM is slow until it has compiled the code that it runs often: one round is not
    enough for a JVM."""
    size: int = partitions.DEFAULT
    """The default number of partitions, rows or megabytes; `--help` says which."""
    experiment: str = ""
    """The text beside which the line is measured: its section stands on that page of docs/experiments."""


LINES = {
    records.NAME: Line("produce and consume with librdkafka, 100 B and 1 KB", records.measure),
    frames.NAME: Line("produce of 1 MB frames and fetch of 1 MiB, beside the raw loopback", frames.measure),
    large_requests.NAME: Line(
        "produce of 90 MB by franz-go's default producer, in requests of up to 40 MB", large_requests.measure
    ),
    transactional_produce.NAME: Line(
        "transactions with librdkafka, of 100 and of 10,000 records", transactional_produce.measure, warm_ups=2
    ),
    exactly_once_write.NAME: Line(
        "writes from Spark, at least and exactly once, beside its connector",
        exactly_once_write.measure,
        warm_ups=2,
        size=exactly_once_write.DEFAULT,
    ),
    spark_read.NAME: Line(
        "batch reads from Spark, beside its connector and the same rows from memory",
        spark_read.measure,
        warm_ups=2,
        size=spark_read.DEFAULT,
    ),
    spark_stream.NAME: Line(
        "streams of large batches from Spark, beside its connector",
        spark_stream.measure,
        warm_ups=2,
        size=spark_stream.DEFAULT,
    ),
    spark_latency.NAME: Line(
        "a record to a Spark query's finished batch, so many of them, beside its connector",
        spark_latency.measure,
        warm_ups=1,
        size=spark_latency.DEFAULT,
    ),
    spark_idle.NAME: Line(
        "CPU of an idle Spark query for so many seconds, beside its connector",
        spark_idle.measure,
        rounds=3,
        warm_ups=1,
        size=spark_idle.DEFAULT,
    ),
    spark_key_ranges.NAME: Line(
        "5 us of Python a row of a partition: eight Spark tasks by key ranges beside one",
        spark_key_ranges.measure,
        warm_ups=2,
        size=spark_key_ranges.DEFAULT,
    ),
    requests.NAME: Line("1-record produce, 8 connections x 16 in flight", requests.measure),
    latency.NAME: Line("1-record produce, one at a time: percentiles, beside one fdatasync", latency.measure),
    start.NAME: Line("start to the first acknowledged record; idle memory", start.measure, warm_ups=1),
    partitions.NAME: Line(
        "many partitions: create, clean restart, idle memory", partitions.measure, rounds=1, warm_ups=0
    ),
    fencing.NAME: Line(
        "KIP-630: the bytes of fencing a broker, one event beside a change for each partition",
        fencing.measure,
        rounds=1,
        warm_ups=0,
        size=fencing.DEFAULT,
        experiment=KIP_630,
    ),
    fence_stall.NAME: Line(
        "KIP-630: how long the event loop stands while a broker with 30,000 partitions is fenced",
        fence_stall.measure,
        rounds=3,
        warm_ups=0,
        size=fence_stall.DEFAULT,
        experiment=KIP_630,
    ),
    snapshots.NAME: Line(
        "KIP-630: a snapshot of so many MB is written and loaded",
        snapshots.measure,
        rounds=3,
        warm_ups=0,
        size=snapshots.DEFAULT_MEGABYTES,
        experiment=KIP_630,
    ),
    catch_up.NAME: Line(
        "KIP-630: a new node by snapshot and by log",
        catch_up.measure,
        rounds=1,
        warm_ups=0,
        size=catch_up.DEFAULT_MEGABYTES,
        experiment=KIP_630,
    ),
    compaction.NAME: Line(
        "KIP-630: what keeping the metadata log short reads, snapshots beside compaction",
        compaction.measure,
        rounds=1,
        warm_ups=0,
        size=compaction.DEFAULT_MEGABYTES,
        experiment=KIP_630,
    ),
    fetch_sessions.NAME: Line(
        "KIP-227: bytes and CPU of a fetch, full and incremental, by partitions and changes",
        fetch_sessions.measure,
        size=fetch_sessions.DEFAULT,
        experiment=KIP_227,
    ),
    session_requests.NAME: Line(
        "KIP-227: CPU of the requester's end of a fetch, beside Kafka's Java client",
        session_requests.measure,
        rounds=3,
        warm_ups=0,
        size=session_requests.DEFAULT,
        experiment=KIP_227,
    ),
    idle_writes.NAME: Line(
        "KIP-227: CPU of three nodes for one acknowledged write among idle partitions",
        idle_writes.measure,
        rounds=3,
        warm_ups=0,
        size=idle_writes.DEFAULT,
        experiment=KIP_227,
    ),
    idle_cores.NAME: Line(
        "KIP-227: cores of three nodes with so many idle partitions",
        idle_cores.measure,
        rounds=1,
        warm_ups=0,
        size=idle_cores.DEFAULT,
        experiment=KIP_227,
    ),
    racks.NAME: Line(
        "KIP-392: bytes between racks, from leaders and from the closest replica, for so many MB",
        racks.measure,
        rounds=3,
        warm_ups=0,
        size=racks.DEFAULT,
        experiment=KIP_392,
    ),
    end_to_end.NAME: Line(
        "KIP-392: end to end from the leader and from a follower; high watermarks, fetch rates",
        end_to_end.measure,
        rounds=3,
        warm_ups=1,
        experiment=KIP_392,
    ),
    record_walk.NAME: Line(
        "the walk over produced records, 100 B and 1 KB; --size: MB of records",
        record_walk.measure,
        warm_ups=1,
        size=record_walk.DEFAULT,
    ),
    key_filter.NAME: Line(
        "KIP-X: the filter of batches by key ranges, alone",
        key_filter.measure,
        warm_ups=1,
        size=key_filter.DEFAULT,
        experiment=KIP_X,
    ),
    key_readers.NAME: Line(
        "KIP-X: CPU of the broker for eight readers that split a partition, beside one of all",
        key_readers.measure,
        warm_ups=1,
        size=key_readers.DEFAULT,
        experiment=KIP_X,
    ),
    range_commits.NAME: Line(
        "KIP-X: CPU of the broker for a commit of ranges over a state of so many",
        range_commits.measure,
        warm_ups=1,
        size=range_commits.DEFAULT,
        experiment=KIP_X,
    ),
    lanes.NAME: Line(
        "KIP-X: a handler of 10 ms a record, sixteen lanes beside one",
        lanes.measure,
        warm_ups=1,
        size=lanes.DEFAULT,
        experiment=KIP_X,
    ),
    handlers.NAME: Line(
        "KIP-X: CPU of a keyed consumer for a handler that does nothing, beside lanes made by hand",
        handlers.measure,
        warm_ups=1,
        size=handlers.DEFAULT,
        experiment=KIP_X,
    ),
    views.NAME: Line(
        "KIP-X: CPU of the broker for eight stock clients that read a view, beside eight partitions",
        views.measure,
        warm_ups=1,
        size=views.DEFAULT,
        experiment=KIP_X,
    ),
    elastic.NAME: Line(
        "KIP-X: eight members that share one partition by key, 10 ms a record, beside one member",
        elastic.measure,
        rounds=3,
        warm_ups=0,
        size=elastic.DEFAULT,
        experiment=KIP_X,
    ),
    joins.NAME: Line(
        "KIP-X: how long slots and keys wait when members come and go",
        joins.measure,
        rounds=2,
        warm_ups=0,
        size=joins.DEFAULT,
        experiment=KIP_X,
    ),
    take_over.NAME: Line(
        "a coordinator takes over a log of so many MB: with its checkpoint, and without",
        take_over.measure,
        rounds=3,
        warm_ups=0,
        size=take_over.DEFAULT_MEGABYTES,
    ),
    failover.NAME: Line(
        "a leader is killed so many times: produce resumes",
        failover.measure,
        rounds=1,
        warm_ups=0,
        size=failover.DEFAULT,
    ),
}
