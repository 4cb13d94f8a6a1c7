"""The cost for the log and the network when a broker stops (KIP-630, "Amount of Data Replicated")."""

from collections.abc import Iterable, Sequence

from benchmarks.lines.metadata.timed_replica import FENCED, image_of
from benchmarks.results.figures import Column, Section
from benchmarks.results.rounds import Rounds
from tailrace.metadata.deciding.state_changes import change_record
from tailrace.metadata.derive import PartitionChange
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.records.brokers import BrokerRegistrationChangeRecord, FenceBrokerRecord
from tailrace.metadata.records.kinds import MetadataRecord, encode_record
from tailrace.metadata.records.topics import partition_record
from tailrace.metadata.replay import derivation
from tailrace.model.steps import result_of
from tailrace.protocol.records.record import BatchBuilder
from tailrace.protocol.schema import replace

NAME = "fencing"
DEFAULT = 1_000_000
BROKERS = 100
PER_TOPIC = 10
RECORDS_PER_BATCH = 10_000
"""The number of records in a batch, as in Kafka's controller."""
EVENT, CHANGES = "FenceBroker", "PartitionChange each"
TEXT_EVENT, TEXT_CHANGES = "the text's FenceBroker", "the text's IsrChange"
TEXT_EVENT_BYTES, TEXT_CHANGE_BYTES = 8, 40
MIB = 1 << 20

CONDITIONS = (
    f"{BROKERS} brokers, topics of {PER_TOPIC} partitions, replication factor 3, replicas drawn at random; one broker "
    "is fenced. Log: whole batches, made by the product's encoders. One FenceBroker record is compared with the "
    f"records of Kafka's controllers: a PartitionChange for every partition of the broker ({RECORDS_PER_BATCH:,} a "
    "batch) and a BrokerRegistrationChange. Network: the same bytes to each of the other brokers, without the frames "
    "of Fetch. Snapshot: the records of these partitions, which every broker writes by itself sooner or later. "
    f"KIP-630 reckons with {TEXT_EVENT_BYTES} B for the event and {TEXT_CHANGE_BYTES} B for a change, without batches."
)


def measure(rounds: Rounds, partitions: int) -> Section:
    image = image_of(partitions // PER_TOPIC, PER_TOPIC, BROKERS)
    for _ in rounds:
        _count(rounds, image, partitions)
    columns = (
        Column("log_bytes", "bytes in each log"),
        Column("network_KiB", "KiB over the network", digits=2),
        Column("snapshot_KiB", "KiB in each snapshot"),
    )
    return rounds.section(NAME, "A broker is fenced: bytes", CONDITIONS, columns)


def _count(rounds: Rounds, image: ClusterImage, partitions: int) -> None:
    event = FenceBrokerRecord(id=FENCED, epoch=image.brokers[FENCED].broker_epoch)
    derived = result_of(derivation(image, event))
    changes = derived.changes
    test = f"{partitions:,} partitions, {len(changes):,} of the broker"
    states = [partition_record(change.partition, change.state) for change in changes]
    sealed = replace(event, derived_count=len(changes), derived_crc=derived.crc)
    fenced = BrokerRegistrationChangeRecord(broker_id=FENCED, broker_epoch=event.epoch, fenced=1)
    sizes = {
        EVENT: _bytes_of([sealed]),
        CHANGES: _bytes_of([*_spelled_out(image, changes), fenced]),
        TEXT_EVENT: TEXT_EVENT_BYTES,
        TEXT_CHANGES: TEXT_CHANGE_BYTES * len(changes),
    }
    in_snapshot = {
        EVENT: _bytes_of(states),
        CHANGES: _bytes_of(states),
        TEXT_EVENT: TEXT_CHANGE_BYTES * len(changes),
        TEXT_CHANGES: 0,
    }
    for name, size in sizes.items():
        network_kib = size * (BROKERS - 1) / 1024
        rounds.record(test, name, log_bytes=size, network_KiB=network_kib, snapshot_KiB=in_snapshot[name] / 1024)


def _spelled_out(image: ClusterImage, changes: Iterable[PartitionChange]) -> Iterable[MetadataRecord]:
    for topic_id, number, after in changes:
        before = image.topics[image.topic_names[topic_id]].partitions[number]
        yield change_record(number, before, after)


def _bytes_of(records: Sequence[MetadataRecord]) -> int:
    size = 0
    for start in range(0, len(records), RECORDS_PER_BATCH):
        builder = BatchBuilder()
        for record in records[start : start + RECORDS_PER_BATCH]:
            builder.append(0, None, encode_record(record))
        size += len(builder.build())
    return size
