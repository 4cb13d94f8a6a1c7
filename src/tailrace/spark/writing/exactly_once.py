"""The exactly-once sink: the rows of a batch are visible once, every row or no row (decision 0063).

1. Each attempt of a task writes in a transaction of its own and leaves the transaction open. Its message to the driver
   has the identity with which another process can end the transaction.
2. The driver commits the transactions of all tasks by one decision of the sink's coordinator. That aborts what other
   attempts have written for the batch.
3. A batch that was decided before is not written again: its tasks read their rows and drop them. The decision keeps a
   digest of the rows, so that a repetition of the batch with other rows is refused (decision 0082).
4. Readers with read_committed see nothing of a batch before its decision, and wait behind the batch: the last stable
   offset of a partition stands while a transaction is open in it.
"""

import logging
import time
from collections.abc import Iterator, Sequence

import pyarrow as pa

from tailrace.client.admin.configs import BROKER
from tailrace.client.blocking.admin import Admin
from tailrace.client.blocking.producer import Producer
from tailrace.client.transactions.sinks import CommittedBatch, SinkRefusal, WrittenMember
from tailrace.client.writer_settings import ProducerSettings
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.sinks import RowsDigest, SinkMember
from tailrace.spark.writing.member_leases import LEASE_MS, worker_leases
from tailrace.spark.writing.row_digests import digest_rows
from tailrace.spark.writing.row_sender import RowSender
from tailrace.spark.writing.sink_batch import SinkBatch, given_up, marked
from tailrace.spark.writing.sink_options import DEFAULT_TIMEOUT_MS, KEEPS_BATCH, TIMEOUT, SinkOptions, SinkTransactions
from tailrace.spark.writing.task_sender import TaskSender

_log = logging.getLogger(__name__)

MAX_TIMEOUT = "transaction.max.timeout.ms"
"""The setting of brokers that limits the timeouts of transactions."""


ENDED = (
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
)
"""The refusals of a transaction that was aborted meanwhile."""


def timed_out(timeout_ms: int) -> str:
    """The option that a batch has outlasted, and the way out."""
    return (
        f"option {TIMEOUT}: a transaction is aborted {timeout_ms} ms after its first row, and a batch has no more time "
        f"to its commit; give more (at most {MAX_TIMEOUT} of the brokers), or write smaller batches. "
        f"It is aborted as well if no Python worker of the query has reached the cluster for {LEASE_MS // 1_000} s"
    )


class _TaskTransaction:
    """The transaction of one attempt of a task, which begins with its first row."""

    def __init__(self, options: SinkOptions, transactions: SinkTransactions, member: SinkMember) -> None:
        self._options = options
        self._member = member
        self._producer: Producer | None = None
        self._rows: RowSender | None = None
        self._timeout_ms = transactions.timeout_ms
        self._began_at: float | None = None

    def send(self, batch: pa.RecordBatch) -> bool:
        """Send the rows. Returns False, at the first call only, if the batch was decided before: then no row is to be
        written."""
        try:
            return self._send(batch)
        except KafkaError as fault:
            raise self._explained(fault) from fault

    def _send(self, batch: pa.RecordBatch) -> bool:
        if self._rows is None:
            producer = self._producer = Producer.of(
                ProducerSettings.on(
                    self._options.cluster.settings(),
                    linger_ms=0,
                    max_request_size=self._options.max_request_size,
                    transactional_id=self._member.transactional_id,
                    transaction_timeout_ms=self._timeout_ms,
                )
            )
            try:
                producer.init_transactions()
            except KafkaError as fault:
                if fault.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    return False
                raise KafkaError(fault.code, _refusal(self._member, self._timeout_ms, fault)) from fault
            worker_leases(self._options.cluster).hold(self._member)
            producer.begin_transaction()
            self._began_at = time.monotonic()
            self._rows = RowSender(self._options, TaskSender(self._options, producer))
        self._rows.send(batch)
        return True

    def finish(self) -> WrittenMember | None:
        """The identity of the open transaction, in which all rows are acknowledged; None without rows."""
        if self._rows is None or self._producer is None:
            return None
        try:
            self._rows.finish()
        except KafkaError as fault:
            raise self._explained(fault) from fault
        identity = self._producer.hand_over_transaction()
        if identity is None:
            return None
        return WrittenMember(self._member.transactional_id, identity.producer_id, identity.producer_epoch)

    def _explained(self, fault: KafkaError) -> KafkaError:
        """The fault, with the option if the transaction has had its time."""
        open_for_ms = 0.0 if self._began_at is None else (time.monotonic() - self._began_at) * 1_000
        if fault.code not in ENDED or open_for_ms < self._timeout_ms:
            return fault
        return KafkaError(fault.code, f"{fault.detail}: {timed_out(self._timeout_ms)}")

    def close(self) -> None:
        """Abort a transaction that was not finished."""
        worker_leases(self._options.cluster).task_ended(self._member)
        if self._producer is not None:
            self._producer.close()


def _refusal(member: SinkMember, timeout_ms: int, fault: KafkaError) -> str:
    match fault.code:
        case ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            return _timeout_refusal(timeout_ms, f"{MAX_TIMEOUT} of the brokers")
        case ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return (
                f"sink {member.sink!r} has taken later batches than {member.batch}, which would be skipped: go on with"
                " the checkpoint that it was written from, or say another sinkId"
            )
        case ErrorCode.PRODUCER_FENCED:
            return f"another run of the query has followed this run in writing to sink {member.sink!r}"
        case _:
            return fault.detail


def other_rows(batch: SinkBatch, refusal: KafkaError) -> str:
    """The reasons and the ways out for a batch that comes again with other rows."""
    changing = "(uuid(), rand(), the time of day, a table that has changed)"
    if batch.query is None or batch.query_batch is not None:
        return (
            f"{refusal.detail}. A write with a sinkId is done once: another write needs another sinkId. If it is the"
            f" same write, and makes other rows of the same input {changing}, option {KEEPS_BATCH}=any keeps the rows"
            " that the sink has and drops these"
        )
    return (
        f"{refusal.detail}. It is no repetition: the checkpoint is older than the sink, or the query, its source or its"
        " options have changed. Go on with the checkpoint that the sink was last written from; or say another sinkId,"
        " which writes all rows of the batch, also those that the topic has already. For a query that makes other rows"
        f" of the same input {changing}, option {KEEPS_BATCH}={batch.batch} keeps the rows that the sink has and drops"
        f" these, and {KEEPS_BATCH}=any those of every batch that comes again"
    )


def _timeout_refusal(timeout_ms: int, limit: str) -> str:
    return f"option {TIMEOUT}: {timeout_ms} is more than {limit}: give less, or raise the brokers' setting"


class ExactlyOnce:
    """The writes of one query or batch write; a value, pickled to its tasks."""

    def __init__(self, options: SinkOptions, transactions: SinkTransactions) -> None:
        self._options = options
        self._transactions = transactions

    def _admin(self) -> Admin:
        return Admin.of(self._options.cluster.settings())

    def check_supported(self) -> None:
        """Raises KafkaError before a task runs.

        UNSUPPORTED_VERSION (35) for a cluster that has no sinks, INVALID_TRANSACTION_TIMEOUT (50) for a timeout that a
        broker does not allow.
        """
        with self._admin() as admin:
            try:
                admin.check_sinks_are_supported()
            except KafkaError as fault:
                if fault.code is not ErrorCode.UNSUPPORTED_VERSION:
                    raise
                detail = f"option exactlyOnce: {fault.detail}; leave the option out to write at least once"
                raise KafkaError(fault.code, detail) from fault
            self._check_timeout(admin)

    def _check_timeout(self, admin: Admin) -> None:
        """Compare a long timeout with the limits that brokers report. Other limits show when the tasks write."""
        timeout_ms = self._transactions.timeout_ms
        if timeout_ms <= DEFAULT_TIMEOUT_MS:
            return
        for broker in admin.describe_cluster().brokers:
            try:
                settings = admin.describe_configs(BROKER, str(broker.node_id))
            except KafkaError as fault:
                _log.warning("%s of broker %d is not known: %s", MAX_TIMEOUT, broker.node_id, fault)
                continue
            most = next((setting.value for setting in settings if setting.name == MAX_TIMEOUT), None)
            if most is not None and timeout_ms > int(most):
                limit = f"{MAX_TIMEOUT} of broker {broker.node_id}, {most}"
                raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT, _timeout_refusal(timeout_ms, limit))

    def write(self, member: SinkMember, parts: Iterator[pa.RecordBatch]) -> tuple[RowsDigest, WrittenMember | None]:
        """Write the rows of one attempt of a task. Returns the digest of the rows, and the open transaction if a row
        was written."""
        transaction = _TaskTransaction(self._options, self._transactions, member)
        rows, is_wanted = RowsDigest(), True
        try:
            for part in parts:
                if part.num_rows and is_wanted:
                    is_wanted = transaction.send(part)
                if part.num_rows:
                    rows = rows.plus(digest_rows(part, self._options.topic))
            return rows, transaction.finish() if is_wanted else None
        finally:
            transaction.close()

    def commit(self, batch: SinkBatch, members: Sequence[WrittenMember], rows: RowsDigest) -> None:
        """Commit the batch, unless an earlier attempt has committed the batch.

        Raises SinkRefusal, OUT_OF_ORDER_SEQUENCE_NUMBER (45), if the batch was committed with other rows and the
        option sinkKeepsBatch does not say that new rows are dropped.
        """
        with self._admin() as admin:

            def commit(compared: RowsDigest | None) -> CommittedBatch:
                return admin.commit_sink(
                    batch.sink,
                    run=batch.run,
                    batch=batch.batch,
                    members=members,
                    origin=batch.origin(self._transactions.checkpoint),
                    takes_over=self._transactions.takes_over,
                    rows=compared,
                )

            try:
                committed = commit(rows)
            except SinkRefusal as refusal:
                if refusal.code in ENDED and any(member.transactional_id in refusal.detail for member in members):
                    detail = f"{refusal.detail}; {timed_out(self._transactions.timeout_ms)}"
                    raise SinkRefusal(refusal.code, detail, refusal.last_batch) from refusal
                if refusal.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or refusal.last_batch != batch.batch:
                    raise
                if self._transactions.keeps_batch not in ("any", batch.batch):
                    raise SinkRefusal(refusal.code, other_rows(batch, refusal), refusal.last_batch) from refusal
                _log.warning("%s; option %s: the sink keeps the rows that it has", refusal.detail, KEEPS_BATCH)
                commit(None)
                return
        if batch.query_batch is not None and self._transactions.sink_id is None:
            _log.warning(
                "option sinkId: batch %d of query %s is written again if Spark repeats it, since this write of its "
                "foreachBatch has no sinkId with the number of the batch",
                batch.query_batch,
                batch.query,
            )
        if committed.is_repetition:
            _log.warning("sink %s has these rows of batch %d already: nothing was written", batch.sink, batch.batch)

    def give_up(self, batch: SinkBatch) -> None:
        """Abort a batch write that has failed, and keep all its attempts from writing: some may not be killed yet."""
        try:
            with self._admin() as admin:
                self._end(admin, batch, None)
        except KafkaError as fault:
            _log.warning("the transactions of a failed write stay open until their timeout: %s", fault)

    def abort(self, batch: SinkBatch | None, number: int, mark: str | None) -> None:
        """End a failed or stopped batch of a stream: abort what is open, so that readers do not wait.

        `batch` is known if a task was done; else the batch is found by its number and the driver's mark. An empty run
        follows the run of the batch: so the ended run commits nothing any more, and a task that is not killed yet
        cannot begin a transaction.
        """
        try:
            with self._admin() as admin:
                listed = [transaction.transactional_id for transaction in admin.list_transactions(states=("Ongoing",))]
                if batch is None and mark is not None:
                    found = {each for name in listed if (each := marked(name, number, mark)) is not None}
                    batch = found.pop() if len(found) == 1 else None
                if batch is not None and any(map(batch.has, listed)):
                    self._end(admin, batch, listed)
        except KafkaError as fault:
            _log.warning("the transactions of a failed batch stay open until their timeout: %s", fault)

    def _end(self, admin: Admin, batch: SinkBatch, listed: Sequence[str] | None) -> None:
        """End the batch: through the sink if the sink is this writer's, else by aborting the members of the batch, so
        that the writer of the sink goes on.

        `listed` are the open transactions of the cluster; None: they are requested when needed.
        """
        if batch.batch > 0 and self._may_lead(admin, batch):
            for empty in given_up(batch):
                admin.commit_sink(empty.sink, run=empty.run, batch=empty.batch, members=())
            return
        if listed is None:
            listed = [transaction.transactional_id for transaction in admin.list_transactions(states=("Ongoing",))]
        for name in filter(batch.has, listed):
            transaction = admin.describe_transaction(name)
            admin.abort_sink_member(WrittenMember(name, transaction.producer_id, transaction.producer_epoch))

    def _may_lead(self, admin: Admin, batch: SinkBatch) -> bool:
        """Whether the sink is this writer's, by the origin in the description of the sink."""
        known = next(iter(admin.describe_sinks([batch.sink])), None)
        checkpoint = self._transactions.checkpoint
        if known is None or known.origin is None or known.run == batch.run or self._transactions.takes_over:
            return True
        if batch.query is not None:
            return known.origin == batch.origin(checkpoint)
        return checkpoint is not None and known.origin.endswith(f" with checkpoint {checkpoint}")
