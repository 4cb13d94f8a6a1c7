"""The options of a write, with the names, defaults and meaning of Spark's Kafka connector."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tailrace.model.errors import KafkaError
from tailrace.model.sinks import LAST_BATCH, check_sink
from tailrace.spark.cluster_access import ClusterAccess, parse_access
from tailrace.spark.given_options import LAST_INT32, GivenOptions, fault, parse_whole_number

_LOCAL = re.compile(r"^file:///(?=[^/])")
_log = logging.getLogger(__name__)

KEEPS_BATCH = "sinkKeepsBatch"
TIMEOUT = "kafka.transaction.timeout.ms"
DEFAULT_TIMEOUT_MS = 900_000
"""The default, which brokers have for transaction.max.timeout.ms too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a write."""

    cluster: ClusterAccess
    topic: str | None = None
    compression: str = "none"
    max_request_size: int = 1_048_576
    """A larger row fails the task; the topic's max.message.bytes is a further limit."""
    transactions: "SinkTransactions | None" = None
    """The options of exactlyOnce=true; None for an at-least-once write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTransactions:
    """The options of a write that repeats nothing."""

    sink_id: str | None = None
    """None: the id of the streaming query; for a batch write an id that no other write has."""
    takes_over: bool = False
    """Whether the sink is taken from the checkpoint that has written to it before."""
    keeps_batch: int | Literal["any"] | None = None
    """The batch that may come again with other rows, which are dropped; `any`: every batch may."""
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    """A transaction that is open for longer is aborted."""
    checkpoint: str | None = None
    """The place of the query's checkpoint, if known."""


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a write. Raises KafkaError(INVALID_REQUEST) that names the option and the way out."""
    given = GivenOptions(options)
    given.refuse_unsupported()
    given.refuse_empty("write")
    given.warn_of_ignored("write")
    _check_acks(given.text("kafka.acks") or "all")
    given.boolean("includeHeaders", False)
    compression = given.text("kafka.compression.type") or "none"
    if compression not in ("none", "gzip", "snappy", "lz4", "zstd"):
        raise fault("kafka.compression.type", "must be none, gzip, snappy, lz4 or zstd")
    return SinkOptions(
        cluster=parse_access(given),
        topic=None if (topic := given.text("topic")) is None else topic.strip(),
        compression=compression,
        max_request_size=given.positive("kafka.max.request.size", at_most=LAST_INT32) or 1_048_576,
        transactions=_transactions(given),
    )


def _check_acks(acks: str) -> None:
    if acks in ("0", "1"):
        _log.warning("option kafka.acks: %s is taken as all, which the sink needs: it is idempotent", acks)
    elif acks not in ("all", "-1"):
        raise fault("kafka.acks", f"must be all, -1, 0 or 1, not {acks!r}")


def _transactions(given: GivenOptions) -> SinkTransactions | None:
    sink_id, takes_over = given.text("sinkId"), given.boolean("sinkTakesOver", False)
    if not given.boolean("exactlyOnce", False):
        for name in ("sinkId", "sinkTakesOver", KEEPS_BATCH, TIMEOUT):
            if given.text(name) is not None:
                raise fault(name, "has a meaning with exactlyOnce=true alone")
        return None
    if sink_id is not None:
        try:
            check_sink(sink_id)
        except KafkaError as wrong:
            raise fault("sinkId", wrong.detail) from None
    return SinkTransactions(
        sink_id=sink_id,
        takes_over=takes_over,
        keeps_batch=_kept_batch(given.text(KEEPS_BATCH)),
        timeout_ms=given.positive(TIMEOUT, at_most=LAST_INT32) or DEFAULT_TIMEOUT_MS,
        checkpoint=_place(given.text("checkpointLocation")),
    )


def _kept_batch(text: str | None) -> int | Literal["any"] | None:
    if text is None:
        return None
    if text.strip().lower() == "any":
        return "any"
    number = parse_whole_number(text.strip())
    if number is None or number > LAST_BATCH:
        raise fault(KEEPS_BATCH, f"must be the number of a batch, or `any`, not {text!r}")
    return number


def _place(location: str | None) -> str | None:
    """A checkpoint's location in one form: Spark's pipelines say `file:///a` in one run and `file:/a` in the next."""
    return None if location is None else _LOCAL.sub("file:/", location).rstrip("/") or location
