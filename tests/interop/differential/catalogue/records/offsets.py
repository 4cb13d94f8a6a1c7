"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords, DescribeProducers and DescribeLogDirs of a log that is known."""

from interop.differential.catalogue.preparation import LIMIT_MS, NOW_MS, batch, created, ends, filled, produce, records
from interop.differential.script import Answers, Script, ask, every_version, key_versions
from tailrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tailrace.protocol.messages.log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from tailrace.protocol.messages.topics import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tailrace.protocol.messages.transactions import DescribedPartitions, DescribeProducersRequest, InitProducerIdRequest
from tailrace.protocol.records.record import build_batch

TOPIC = "offsets"
_TIMES = (-1, -2, 0, NOW_MS, NOW_MS + 1, NOW_MS + 3, NOW_MS + 4, NOW_MS + 52, NOW_MS + 10_000, 2**63 - 1)


def offsets() -> Script:
    """A log whose timestamps go up, down, and up again, in three codecs; and an empty log."""
    yield from created(TOPIC, 2)
    yield from filled(
        TOPIC,
        batch(5),
        bytes(build_batch(records(3, first_ms=NOW_MS - 100))),
        bytes(build_batch(records(4, first_ms=NOW_MS + 50), codec=1)),
        bytes(build_batch(records(2, first_ms=NOW_MS + 20), codec=4)),
    )
    yield from _list_offsets()
    yield from _leader_epochs()
    yield from _sizes()
    yield from _delete_records()
    yield from _producers()


def list_offsets(
    timestamp: int, *, topic: str = TOPIC, partition: int = 0, epoch: int = -1, isolation: int = 0, replica: int = -1
) -> ListOffsetsRequest:
    """ListOffsets of one partition."""
    asked = ListOffsetsPartition(partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp)
    return ListOffsetsRequest(
        replica_id=replica,
        isolation_level=isolation,
        topics=(ListOffsetsTopic(name=topic, partitions=(asked,)),),
        timeout_ms=LIMIT_MS,
    )


def _list_offsets() -> Script:
    for timestamp in _TIMES:
        yield from ask(f"offset at {timestamp}", list_offsets(timestamp), *every_version(ListOffsetsRequest))
        yield from ask(f"offset at {timestamp}, read committed", list_offsets(timestamp, isolation=1), 2, 6, 10)
        yield from ask(f"offset at {timestamp} of an empty log", list_offsets(timestamp, partition=1), 1, 4, 10)
    yield from ask("offset of the largest timestamp", list_offsets(-3), 7, 8, 9, 10)
    yield from ask("offset of the largest timestamp, empty log", list_offsets(-3, partition=1), 7, 10)
    for special in (-3, -4, -5, -6, -100):
        yield from ask(f"offset at {special}, which not all versions have", list_offsets(special), 1, 6, 7, 8, 9, 10)
    yield from ask("offset at an isolation level that is none", list_offsets(-1, isolation=2), 2, 10)
    for epoch in (-1, 0, 1, 5):
        yield from ask(f"offset in leader epoch {epoch}", list_offsets(-1, epoch=epoch), 4, 10)
    versions = key_versions(ListOffsetsRequest)
    yield from ask("offset of an unknown topic", list_offsets(-1, topic="nowhere"), *versions)
    yield from ask("offset of an unknown partition", list_offsets(-1, partition=9), *versions)
    yield from ask("offset of partition -1", list_offsets(-1, partition=-1), *versions)
    yield from ask("offset of a topic with an invalid name", list_offsets(-1, topic="no/such"), *versions)
    for replica in (-2, -3, 1, 7):
        yield from ask(f"offset for replica {replica}", list_offsets(-1, replica=replica), *versions)
    twice = ends(TOPIC, (0, 0, 1))
    yield from ask("offset of a partition named twice", twice, *versions)
    yield from ask("offset of nothing", ListOffsetsRequest(replica_id=-1, topics=()), *versions)


def _leader_epochs() -> Script:
    def asked(epoch: int, current: int = -1, topic: str = TOPIC, partition: int = 0, replica: int = -2) -> object:
        wanted = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
        return OffsetForLeaderEpochRequest(
            replica_id=replica, topics=(OffsetForLeaderTopic(topic=topic, partitions=(wanted,)),)
        )

    for epoch in (-2, -1, 0, 1, 7):
        for current in (-1, 0, 1):
            yield from ask(f"end of epoch {epoch} in {current}", asked(epoch, current), 2, 3, 4)
    yield from ask("end of an epoch of an empty log", asked(0, partition=1), 2, 4)
    yield from ask("end of an epoch of an unknown partition", asked(0, partition=9), 2, 4)
    yield from ask("end of an epoch of an unknown topic", asked(0, topic="nowhere"), 2, 4)
    yield from ask("end of an epoch for a debugger", asked(0, replica=-1), 3, 4)


def _sizes() -> Script:
    def asked(*topics: tuple[str, tuple[int, ...]]) -> DescribeLogDirsRequest:
        return DescribeLogDirsRequest(
            topics=tuple(DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in topics)
        )

    yield from ask("sizes of one topic", asked((TOPIC, (0, 1))), *every_version(DescribeLogDirsRequest))
    yield from ask("sizes of an unknown partition", asked((TOPIC, (0, 7))), 1, 4)
    yield from ask("sizes of an unknown topic", asked(("nowhere", (0,))), 1, 4)
    yield from ask("sizes of no topic", asked(), 1, 4)
    yield from ask("sizes of a topic named twice", asked((TOPIC, (0,)), (TOPIC, (0, 1))), 1, 4)


def delete_records(*wanted: tuple[int, int], topic: str = TOPIC) -> DeleteRecordsRequest:
    """DeleteRecords of these partitions, with an offset for each partition."""
    asked = tuple(DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in wanted)
    return DeleteRecordsRequest(topics=(DeleteRecordsTopic(name=topic, partitions=asked),), timeout_ms=LIMIT_MS)


def _delete_records() -> Script:
    for offset in (0, 2, 1, 100, -2, -5):
        yield from ask(f"delete records before {offset}", delete_records((0, offset)), 0, 1, 2)
    yield from ask("delete records of an empty log", delete_records((1, 0)), 0, 2)
    yield from ask("delete records of an empty log to its end", delete_records((1, -1)), 0, 2)
    yield from ask("delete records of an unknown partition", delete_records((9, 0)), 0, 2)
    yield from ask("delete records of an unknown topic", delete_records((0, 0), topic="nowhere"), 0, 2)
    yield from ask("delete records of a partition named twice", delete_records((0, 3), (0, 2)), 0, 2)
    yield from ask("delete records of an internal topic", delete_records((0, 0), topic="__consumer_offsets"), 0, 2)
    yield from ask("delete records of the metadata", delete_records((0, 0), topic="__cluster_metadata"), 0, 2)
    yield from ask("start after records are deleted", list_offsets(-2), 1, 10)
    yield from ask("first timestamp after records are deleted", list_offsets(0), 1, 10)
    yield from ask("delete all records", delete_records((0, -1)), 2)
    yield from ask("start of a log without records", list_offsets(-2), 10)
    yield from ask("largest timestamp of a log without records", list_offsets(-3), 10)
    yield from ask("timestamp in a log without records", list_offsets(NOW_MS), 10)


def _producers() -> Script:
    def write(sequence: int, count: int) -> object:
        def build(answers: Answers) -> object:
            producer_id = answers["a producer is given an id"].producer_id
            data = batch(count, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            return produce(TOPIC, data, partition=1)(answers)

        return build

    def asked(*indexes: int, topic: str = TOPIC) -> DescribeProducersRequest:
        return DescribeProducersRequest(topics=(DescribedPartitions(name=topic, partition_indexes=indexes),))

    given = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    yield from ask("a producer is given an id", given, 5, until=lambda answer: answer.error_code == 0)
    yield from ask("producers before there is one", asked(0, 1))
    yield from ask("a producer writes", write(0, 3), 9)
    yield from ask("a producer writes more", write(3, 2), 9)
    yield from ask("producers of a partition", asked(0, 1))
    yield from ask("producers of a partition named twice", asked(1, 1))
    yield from ask("producers of an unknown partition", asked(9))
    yield from ask("producers of an unknown topic", asked(0, topic="nowhere"))
    yield from ask("producers of a topic with an invalid name", asked(0, topic="no/such"))
