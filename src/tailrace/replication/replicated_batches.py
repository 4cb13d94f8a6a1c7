"""Checks of batches that a leader has sent, before they are written as they are: every byte, every offset. Pure.

A follower trusts nothing: bytes may have changed on the way, and a leader may be wrong. A batch that it writes has a
right checksum, continues its log, and was written in an epoch that neither falls nor lies after the leader's.
The base offset of a batch is not below its checksum: `MissingOffsets` is for the follower to ask again.
"""

from typing import NoReturn

from tailrace.model.errors import CorruptRecords
from tailrace.protocol.records.batch import check_crc, iter_batches
from tailrace.protocol.schema import Buffer
from tailrace.storage import AppendBatch


class MissingOffsets(CorruptRecords):
    """The batch at `base_offset` does not continue the log: damage, or what a compaction has left."""

    def __init__(self, base_offset: int, end_offset: int) -> None:
        super().__init__(_sent(f"a batch at offset {base_offset}, where {end_offset} was expected"))
        self.base_offset = base_offset


def replicated_batches(
    records: Buffer, *, end_offset: int, latest_epoch: int, leader_epoch: int, may_have_gaps: bool, is_empty: bool
) -> list[AppendBatch]:
    """The whole batches of an answer that continue a log which ends at `end_offset`; those it has already are left out.

    `latest_epoch` is that of the log's last record, `leader_epoch` that of the leader that has sent this. With
    `may_have_gaps` offsets may be missing between batches: the leader's log may have been compacted. With `is_empty`
    the log has no batch, and the first one may begin before it: DeleteRecords lets the leader's log start anywhere.
    Raises MissingOffsets without `may_have_gaps`, and CorruptRecords if anything else is wrong; nothing of the answer
    is to be written then.
    """
    view = memoryview(records)
    batches: list[AppendBatch] = []
    for position, header in iter_batches(view):
        if header.end_offset <= end_offset and not batches:
            continue  # the batch before the fetch offset; only a log that was cut within a gap asks like this
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
