"""Commands to a transaction coordinator, and their results."""

from dataclasses import dataclass

from tailrace.coordinators.transactions.transaction import TransactionState
from tailrace.model.ids import NO_PRODUCER_ID
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import RowsDigest

NO_EXPECTATION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class InitializeProducer:
    """A producer begins, or resumes after an error with its present id and epoch (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    expected_producer_id: int = NO_PRODUCER_ID
    expected_producer_epoch: int = NO_EXPECTATION
    fresh_producer_id: int = NO_PRODUCER_ID
    """A new producer id: needed if the answer is NeedsProducerId."""
    fresh_producer_epoch: int = 0
    """The first epoch of this producer id: above 0 if the id belonged to another member of the same sink before."""

    @property
    def is_resumed(self) -> bool:
        return self.expected_producer_id != NO_PRODUCER_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """A producer is about to write to these partitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    client_version: int = 0
    """The transaction.version of the producer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """A producer commits or aborts."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    client_version: int = 0
    """The transaction.version of the producer."""
    fresh_producer_id: int = NO_PRODUCER_ID
    """A new producer id, as in `InitializeProducer`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteTransaction:
    """The markers of a prepared transaction are all written."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTimedOut:
    """Abort the transaction of one transactional id that is open for longer than its timeout."""

    transactional_id: str
    is_lapsed: bool = False
    """Abort also before the timeout: the run of a sink's member gives no more signs of life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetUnused:
    """Delete one transactional id if it was not used for `transactional.id.expiration.ms`."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMemberIdentity:
    """The identity of a sink's member, as the task of the member has reported it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSink:
    """Commit a batch of a sink: the transactions of these members, and no other."""

    sink_id: str
    run: str
    batch: int
    origin: str | None = None
    """The place where the writer keeps its progress; None: the writer names no place."""
    takes_over: bool = False
    """Whether this origin replaces the origin of the sink."""
    members: tuple[SinkMemberIdentity, ...]
    rows: RowsDigest | None = None
    """The rows of the batch; None: the rows of a repeated batch are not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSink:
    """End members of a sink that can never commit. The host repeats the command until no such member is left."""

    sink_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSink:
    """Delete one sink if it had no commit for `transactional.id.expiration.ms`."""

    sink_id: str


ProducerCommand = (
    InitializeProducer | AddPartitions | EndTransaction | CompleteTransaction | AbortTimedOut | ForgetUnused
)
"""A command about one transactional id."""
SinkCommand = CommitSink | SweepSink | ForgetSink
Command = ProducerCommand | SinkCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    """The answer with the producer's id and epoch from now on."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class NeedsProducerId:
    """Nothing is decided: the command has to be repeated with a fresh producer id."""


@dataclass(frozen=True, slots=True)
class AbortedFirst:
    """The open transaction is being aborted; the command has to be repeated after that."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The command is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCommitted:
    """The batch is decided."""

    is_repetition: bool
    """Whether an earlier command has decided the batch."""


Response = ProducerIdentity | NeedsProducerId | AbortedFirst | Completed | SinkCommitted


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersToWrite:
    """The markers of a prepared transaction: its end and its partitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int
    """The transaction.version of the producer. With version 2 the epoch of the markers is above the epoch of the
    transaction (KIP-890)."""
    is_commit: bool
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransactions:
    """The filter of a list of transactional ids. Empty, None and -1 match every id."""

    states: frozenset[TransactionState] | None = None
    producer_ids: frozenset[int] = frozenset()
    longer_than_ms: int = -1
