"""Batches of a coordinator for a partition that its node leads: records as one batch, with callbacks."""

from collections.abc import Sequence

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.records.record import BatchBuilder
from tailrace.replication.outcomes import Appended, OnDone
from tailrace.replication.replica import Replica


def batch_of(
    replica: Replica,
    records: Sequence[tuple[bytes | None, bytes | None]],
    *,
    now_ms: int,
    producer_id: int,
    producer_epoch: int,
) -> bytearray:
    """These (key, value) records as a batch for this partition, part of a transaction if there is a producer.

    Raises KafkaError MESSAGE_TOO_LARGE (10).
    """
    is_transactional = producer_id >= 0
    builder = BatchBuilder(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=0 if is_transactional else -1,
        is_transactional=is_transactional,
    )
    for key, value in records:
        builder.append(now_ms, key, value)
    batch = builder.build()
    if len(batch) > replica.config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{len(batch)} bytes of {len(records)} records; max.message.bytes of {replica.topic_partition.topic} is "
            f"{replica.config.max_message_bytes}",
        )
    return batch


def when_committed(replica: Replica, on_done: OnDone, on_appended: OnDone | None) -> OnDone:
    """A wait for a batch of a coordinator: to be in the log, and then below the high watermark."""

    def appended(outcome: Appended | KafkaError) -> None:
        if on_appended is not None:
            on_appended(outcome)
        if isinstance(outcome, KafkaError):
            on_done(outcome)
        else:
            replica.when_high_watermark_reaches(
                outcome.last_offset + 1, lambda failure: on_done(outcome if failure is None else failure)
            )

    return appended
