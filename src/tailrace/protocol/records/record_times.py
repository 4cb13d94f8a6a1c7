"""The largest timestamp of a stored batch, where its header cannot be right.

A leader of today corrects each header before it stores the batch (`replication.admission`). Logs of older releases,
directories of other programs and batches of a leader of an older release hold headers as producers wrote them: some
clients state -1 beside records with times. A largest time below the batch's own first time is such a header, and the
records decide then; of batches that no leader is known to have checked, the records decide in any case (decision 0069).
A producer may send records whose times all lie below the first time of the batch: so no checked header is doubted.
"""

from tailrace.model.errors import CorruptRecords
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import HEADER_SIZE, BatchHeader
from tailrace.protocol.records.compression import decompress
from tailrace.protocol.records.kernels import check_records


def is_doubtful(header: BatchHeader) -> bool:
    """Whether the largest time of the header lies below the first time, which no header of one clock has."""
    return header.max_timestamp < header.base_timestamp and _has_times_of_records(header)


def _has_times_of_records(header: BatchHeader) -> bool:
    """Whether the times are those that a producer gave its records: not the broker's, and no delete horizon."""
    return header.records_count > 0 and not (
        header.is_control or header.has_log_append_time or header.has_delete_horizon
    )


def largest_time(batch: Buffer, header: BatchHeader) -> int:
    """The largest timestamp of the records of this whole batch, -1 for none.

    A batch that cannot be parsed has the time of its header.
    """
    if not _has_times_of_records(header):
        return header.max_timestamp
    section: Buffer = memoryview(batch)[HEADER_SIZE : header.size_bytes]
    try:
        if header.codec:
            section = decompress(header.codec, section)
        return check_records(section, 0, header.records_count, header.base_timestamp)[0]
    except CorruptRecords:
        return header.max_timestamp
