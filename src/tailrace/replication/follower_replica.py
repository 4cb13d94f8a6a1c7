"""The following side of a partition: appends of its leader's batches, flushes, and truncation where the logs
diverge."""

from collections.abc import Callable
from typing import Final, NoReturn

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.protocol.records.batch import check_crc, iter_batches
from tailrace.protocol.schema import Buffer
from tailrace.replication.outcomes import UNKNOWN_EPOCH, PartitionRead
from tailrace.replication.replica import Replica
from tailrace.replication.watchers import Change
from tailrace.storage import AppendBatch, ReadLimits
from tailrace.storage.epoch_cache import EpochCache
from tailrace.storage.log_times import UNCHECKED


def may_cut(offset: int, *, high_watermark: int, agreed_epoch: int, unclean_epoch: int) -> bool:
    """Whether a replica may cut its log at this offset if its leader's log diverges there.

    Every record below the replica's own high watermark is committed. Only an unclean election may have lost committed
    records, and only an unclean election after `agreed_epoch`, the last epoch in which this log agreed with its
    leader's log. `unclean_epoch` is the epoch of the last unclean election, -1 if there was none. Without such an
    election the leader itself has lost records, and the replica must not cut.
    """
    return offset >= high_watermark or unclean_epoch > agreed_epoch


def cut_offset(epochs: EpochCache, log_end_offset: int, diverging: OffsetAndEpoch) -> int:
    """The offset at which a log that diverges from its leader's is cut; the logs may diverge below this offset, too
    (KIP-279).

    `diverging` is the end of the largest epoch that the leader has at or below the follower's last epoch. If the
    follower has that epoch too, the logs are the same up to the smaller end. If not, every later epoch is cut off, and
    the next fetch states the epoch of the record before the cut.
    """
    own = epochs.end_offset_for(diverging.epoch, log_end_offset=log_end_offset)
    if own.epoch == diverging.epoch:
        return min(diverging.offset, own.offset, log_end_offset)
    if own.offset >= 0:
        return min(own.offset, log_end_offset)
    return min(diverging.offset, log_end_offset)


class MissingOffsets(CorruptRecords):
    """The batch at `base_offset` does not continue the log: because of damage, or because compaction has removed
    batches before it."""

    def __init__(self, base_offset: int, end_offset: int) -> None:
        super().__init__(_sent(f"a batch at offset {base_offset}, where {end_offset} was expected"))
        self.base_offset = base_offset


def replicated_batches(
    records: Buffer, *, end_offset: int, latest_epoch: int, leader_epoch: int, may_have_gaps: bool, is_empty: bool
) -> list[AppendBatch]:
    """The whole batches of an answer that continue a log with the end `end_offset`; batches that the log already has
    are left out.

    A follower trusts nothing: bytes may have changed on the way, and a leader may be wrong. A batch that it writes has
    a right checksum, continues its log, and was written in an epoch that neither falls nor lies after the leader's. The
    checksum does not cover the base offset of a batch: after `MissingOffsets` the follower fetches again.

    `latest_epoch` is the epoch of the log's last record, `leader_epoch` that of the leader that has answered. With
    `may_have_gaps` offsets may be missing between batches: the leader's log may have been compacted. With `is_empty`
    the log has no batch, and the first batch may begin below `end_offset`: DeleteRecords lets the leader's log start
    anywhere. Raises MissingOffsets without `may_have_gaps`, and CorruptRecords if anything else is wrong: then no batch
    of the answer may be written.
    """
    view = memoryview(records)
    batches: list[AppendBatch] = []
    for position, header in iter_batches(view):
        if header.end_offset <= end_offset and not batches:
            continue  # a batch before the fetch offset; only a log that was cut within a gap fetches like this
        if header.base_offset < end_offset and (batches or not is_empty):
            _refuse(f"a batch at offset {header.base_offset}, where {end_offset} was expected")
        if header.base_offset > end_offset and not may_have_gaps:
            raise MissingOffsets(header.base_offset, end_offset)
        epoch = header.partition_leader_epoch
        if not latest_epoch <= epoch <= leader_epoch:
            _refuse(
                f"a batch of leader epoch {epoch} after one of {latest_epoch}, sent by the leader of {leader_epoch}"
            )
        check_crc(view, position, header)
        batches.append(AppendBatch(view[position : position + header.size_bytes], header))
        end_offset, latest_epoch = header.end_offset, epoch
    return batches


def _refuse(what: str) -> NoReturn:
    raise CorruptRecords(_sent(what))


def _sent(what: str) -> str:
    return f"the leader has sent {what}"


OnFlushed = Callable[[KafkaError | None], None]
"""Called once: with None when the flush is done, else with the fault."""

_UNKNOWN: Final = -1
_CUT: Final = Change.LOG_END | Change.HIGH_WATERMARK | Change.LAST_STABLE_OFFSET


class FollowerReplica:
    """The following side of one partition; a leader uses only its `recovery_point` and `agreed_epoch`."""

    __slots__ = (
        "_doubted_offset",
        "_leader_has_gaps",
        "_replica",
        "agreed_epoch",
        "leader_high_watermark",
        "leader_log_start_offset",
        "recovery_bound",
    )

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.agreed_epoch: int = UNKNOWN_EPOCH
        """The newest leader epoch in which batches of the leader have continued this log, since the log was opened."""
        self.recovery_bound: int | None = None
        """The offset at which the log is about to be cut: no recovery point may be above this offset any more."""
        self.leader_high_watermark = self.leader_log_start_offset = _UNKNOWN
        """The leader's offsets in its last answer; -1 before its first answer in this epoch."""
        self._leader_has_gaps = False
        self._doubted_offset = -1

    def forget_leader(self) -> None:
        """Reset the state that belongs to one leader: its offsets, a pending truncation, and the permission for
        gaps."""
        self.recovery_bound = None
        self.leader_high_watermark = self.leader_log_start_offset = _UNKNOWN
        self._leader_has_gaps = False
        self._doubted_offset = -1

    def append(self, records: Buffer, *, checked_from: int | None = None) -> None:
        """Append the leader's batches unchanged; `flush` stores the batches.

        The leader vouches for the headers of batches from `checked_from` on; None, as from leaders of older releases:
        for no header. The times of all other batches are taken from their records.

        Offsets may be missing in a topic that is compacted, or was compacted once. In such a topic a gap is accepted
        when the leader has sent the same gap twice, since the checksum does not cover a batch's base offset.

        After DeleteRecords the leader's log may start within a batch. A log that `restart_at` has begun there starts
        within its first batch, too.

        Raises CorruptRecords for batches that do not continue this log, and StorageError.
        """
        replica = self._replica
        self._check_follows()
        log = replica.log
        may_have_gaps = self._leader_has_gaps or replica.config.is_compacted
        try:
            batches = self._sent_by_leader(records, may_have_gaps=may_have_gaps)
        except MissingOffsets as gap:
            if gap.base_offset != self._doubted_offset:
                self._doubted_offset = gap.base_offset
                raise
            self._leader_has_gaps = may_have_gaps = True
            batches = self._sent_by_leader(records, may_have_gaps=True)
        if batches:
            size_bytes = log.size_bytes
            vouched = UNCHECKED if checked_from is None else checked_from
            if batches[0].header.base_offset < log.log_end_offset:
                log.begin_within(batches.pop(0), checked_from=vouched)
            log.append(batches, may_have_gaps=may_have_gaps, checked_from=vouched)
            self._doubted_offset = -1
            replica.written_bytes += log.size_bytes - size_bytes
            replica.high_watermark.note_write(log.log_end_offset, replica.written_bytes)
            replica.notify(Change.LOG_END)

    def _check_follows(self) -> None:
        assert not self._replica.is_leader, f"{self._replica.topic_partition} is led here"

    def _sent_by_leader(self, records: Buffer, *, may_have_gaps: bool) -> list[AppendBatch]:
        log = self._replica.log
        return replicated_batches(
            records,
            end_offset=log.log_end_offset,
            latest_epoch=log.epochs.latest_epoch,
            leader_epoch=self._replica.leader_epoch,
            may_have_gaps=may_have_gaps,
            is_empty=log.is_empty,
        )

    def flush(self, on_flushed: OnFlushed) -> None:
        """Call `on_flushed` once: with None when the appended batches are stored, perhaps at once; else with the fault.

        Faults: KAFKA_STORAGE_ERROR (56) when the log is offline or goes offline before the flush is done, and
        NOT_LEADER_OR_FOLLOWER (6) when the partition is closed meanwhile.

        Under page-cache durability a written batch counts as stored.
        """
        replica, log = self._replica, self._replica.log
        is_flushed = replica.context.is_flushed
        if log.is_offline:
            on_flushed(self._not_flushed())
            return
        if not is_flushed:
            replica.sync_by_count()
        if not is_flushed or not log.flushes.has_work:
            on_flushed(None)
            return

        def done() -> None:
            on_flushed(self._not_flushed() if replica.is_closed or log.is_offline else None)

        replica.flush_and(done, disk=replica.context.disk)

    def _not_flushed(self) -> KafkaError:
        replica = self._replica
        if replica.is_closed:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{replica.topic_partition} is closed here")
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{replica.topic_partition}: {replica.log.failure}")

    def take_leader_offsets(self, *, high_watermark: int, log_start_offset: int) -> None:
        """Take over the leader's own high watermark and log start, as far as this log reaches."""
        replica = self._replica
        self.agreed_epoch = replica.leader_epoch
        self.leader_high_watermark, self.leader_log_start_offset = high_watermark, log_start_offset
        advanced = min(high_watermark, replica.own_end_offset)
        if advanced > replica.high_watermark.offset:
            replica.rise(advanced)
        replica.advance_log_start(min(log_start_offset, replica.high_watermark.offset))

    def read(self, limits: ReadLimits, end_offset: int) -> PartitionRead:
        """Read up to this offset, see `Partition.read`.

        A read above the log end is empty: the record may be committed, and not yet replicated to this broker. An offset
        below the log start is out of range only if the leader's log start is above the offset, too. Otherwise the
        reader is sent to the leader.
        """
        replica, log, offset = self._replica, self._replica.log, limits.offset
        if log.is_offline:
            log.check_online()
        if offset > log.log_end_offset:
            return replica.read_nothing(offset)
        if offset < log.log_start_offset and self.leader_log_start_offset < log.log_start_offset:
            raise replica.not_leader()
        return replica.read(limits, end_offset)

    def truncate_to(self, offset: int) -> None:
        """Cut the log at this offset: the leader does not have the records above. The caller has made `recovery_bound`
        durable.

        Raises StorageError; the log is offline then.
        """
        self._check_follows()
        log, high_watermark = self._replica.log, self._replica.high_watermark
        log.truncate_to(offset)
        log.epochs.truncate_from_end(log.log_end_offset)
        high_watermark.move_to(min(high_watermark.offset, log.log_end_offset))
        self.recovery_bound = None
        self._replica.notify(_CUT)

    def restart_at(self, offset: int) -> None:
        """Drop the whole log, and begin at this offset, where the leader's log begins. Before, the caller has made a
        `recovery_bound` of 0 durable.

        Raises StorageError as `truncate_to`.
        """
        self._check_follows()
        self._replica.log.truncate_fully_and_start_at(offset)
        self._replica.high_watermark.move_to(offset)
        self.recovery_bound = None
        self._replica.notify(_CUT | Change.LOG_START)

    @property
    def recovery_point(self) -> int:
        """The offset up to which the log is durable and will not be cut; at most the start of damage. After a crash,
        recovery checks the log only from this offset on."""
        log = self._replica.log
        offset = min(log.flushed_offset, log.good_end_offset) if log.is_damaged else log.flushed_offset
        return offset if self.recovery_bound is None else min(offset, self.recovery_bound)
