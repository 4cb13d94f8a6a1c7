"""CommitSink (10001), DescribeSinks (10002), RenewSinkRun (10003): batches of a sink, whole and once (decision 0063).

APIs of ours. CommitSink and RenewSinkRun go to the coordinator of the transactional id `__tailrace_sink/<sink>`,
DescribeSinks to any broker. A broker takes CommitSink once it announces the feature `tailrace.sinks` in ApiVersions:
then all brokers of its cluster know sinks.
"""

from tailrace.protocol.schema import Int8, Int16, Int32, Int64, field, message, struct


@struct
class MemberToCommit:
    """The transaction of one task."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16


@struct
class RowsOfBatch:
    """The rows of a batch: see `RowsDigest`."""

    row_count: Int64
    digest: Int64
    scheme: Int8


@message(api_key=10001, versions="0", flexible="0+")
class CommitSinkRequest:
    """Commits one batch."""

    sink_id: str
    run: str
    batch: Int64
    origin: str | None = None
    """The place where the writer keeps its progress; null: the origin is not compared."""
    takes_over: bool = False
    """Whether `origin` replaces the origin of the sink."""
    timeout_ms: Int32 = 30_000
    """The longest wait for the markers of the members; then the answer is REQUEST_TIMED_OUT (7), to be repeated."""
    members: tuple[MemberToCommit, ...] = ()
    rows: RowsOfBatch | None = field(versions="0+", tag=0, default=None)
    """The rows of the batch. If the batch is the sink's last batch, and was committed with other rows, the request is
    refused (45). Null: no comparison."""


@message(api_key=10001, versions="0", flexible="0+")
class CommitSinkResponse:
    """The batch is decided, and every record that the batch has committed can be read; or the error."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    is_repetition: bool = False
    """Whether an earlier request has decided the batch."""
    last_batch: Int64 = -1
    """The last decided batch of the sink, also with an error; -1 if no batch is decided, or the last batch is unknown
    here."""


@message(api_key=10002, versions="0", flexible="0+")
class DescribeSinksRequest:
    """Asks for the sinks that a broker coordinates, page by page, in the order of their ids."""

    sink_ids: tuple[str, ...] | None = None
    """Null: every sink."""
    first_sink_id: str = ""
    """The id at which the page begins."""


@struct
class DescribedSink:
    """A sink."""

    sink_id: str
    run: str
    """The current run; empty if no batch is decided yet."""
    last_batch: Int64
    """-1 if no batch is decided yet."""
    origin: str | None
    updated_at_ms: Int64
    """The time of the last decision, in ms since 1970; -1 without a decision."""
    past_runs: Int32
    """The runs that are refused because newer runs have followed."""
    open_members: Int32
    """The attempts of tasks with an open transaction."""
    ending_members: Int32
    """The attempts whose end is decided, and whose markers are being written."""


@message(api_key=10002, versions="0", flexible="0+")
class DescribeSinksResponse:
    """A page of a list of sinks."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    sinks: tuple[DescribedSink, ...] = ()
    next_sink_id: str = ""
    """The begin of the next page; empty: this is the last page."""


@message(api_key=10003, versions="0", flexible="0+")
class RenewSinkRunRequest:
    """A sign of life of a run that has open members (decision 0083)."""

    sink_id: str
    run: str
    lease_ms: Int32
    """The time, plus some time more, after which the members of the run are aborted if no other sign comes."""


@message(api_key=10003, versions="0", flexible="0+")
class RenewSinkRunResponse:
    """The sign is taken, or the error: the run was followed (90)."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    last_batch: Int64 = -1
    """The last decided batch of the sink; -1 if no batch is decided."""
