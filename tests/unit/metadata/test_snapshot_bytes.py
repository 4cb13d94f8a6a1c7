"""The bytes of a snapshot stay the same from release to release: which records state an image, and in which order."""

from pathlib import Path

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage
from tailrace.metadata.records.brokers import (
    RecordedEndpoint,
    RecordedFeature,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnfenceBrokerRecord,
)
from tailrace.metadata.records.cluster import FeatureLevelRecord, ProducerIdsRecord
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.topics import ConfigRecord, PartitionChangeRecord, PartitionRecord, TopicRecord
from tailrace.metadata.replay import apply_all
from tailrace.metadata.snapshot_image import SnapshotLoader, snapshot_values
from tailrace.protocol.records.record import Record, build_batch

GOLDEN = Path(__file__).parents[2] / "golden" / "metadata_snapshot.txt"
A, B = (bytes([number]) * 16 for number in (1, 2))


def image() -> ClusterImage:
    """A cluster with a record of each kind that a snapshot is made of, in another order than a snapshot's."""
    records: list[MetadataRecord] = [
        ProducerIdsRecord(broker_id=2, broker_epoch=5, next_producer_id=3000),
        *(
            RegisterBrokerRecord(
                broker_id=number,
                incarnation_id=bytes([number]) * 16,
                broker_epoch=number,
                end_points=(RecordedEndpoint(name="PLAINTEXT", host="one", port=9092, security_protocol=0),),
                features=(
                    RecordedFeature(name="metadata.version", min_supported_version=26, max_supported_version=27),
                ),
                rack=rack,
                log_dirs=(A, B),
            )
            for number, rack in ((2, "r"), (1, None))
        ),
        UnfenceBrokerRecord(id=1, epoch=1),
        TopicRecord(name="orders.of", topic_id=A),
        PartitionRecord(
            partition_id=0,
            topic_id=A,
            replicas=(1, 2),
            isr=(1,),
            removing_replicas=(2,),
            adding_replicas=(1,),
            leader=1,
            leader_epoch=3,
            partition_epoch=4,
            directories=(A, B),
            eligible_leader_replicas=(2,),
        ),
        PartitionRecord(
            partition_id=1, topic_id=A, replicas=(2,), isr=(), leader=-1, leader_epoch=1, partition_epoch=1
        ),
        PartitionChangeRecord(
            partition_id=1, topic_id=A, isr=(2,), leader=2, leader_recovery_state=1, accepts_loss=True
        ),
        ConfigRecord(resource_type=4, resource_name="", name="min.insync.replicas", value="2"),
        ConfigRecord(resource_type=2, resource_name="orders.of", name="retention.ms", value="7"),
        ConfigRecord(resource_type=2, resource_name="orders.of", name="cleanup.policy", value="compact"),
        TopicRecord(name="empty", topic_id=B),
        RegisterControllerRecord(
            controller_id=3000,
            incarnation_id=A,
            zk_migration_ready=False,
            end_points=(RecordedEndpoint(name="CONTROLLER", host="two", port=9093, security_protocol=1),),
            features=(RecordedFeature(name="metadata.version", min_supported_version=26, max_supported_version=27),),
        ),
        FeatureLevelRecord(name="metadata.version", feature_level=27),
        FeatureLevelRecord(name="transaction.version", feature_level=2),
    ]
    return apply_all(EMPTY_IMAGE, records)[0]


def test_an_image_is_stated_by_the_records_of_before_in_their_order() -> None:
    assert [value.hex() for value in snapshot_values(image())] == GOLDEN.read_text().split()


def test_the_records_of_before_load_as_the_image() -> None:
    loader = SnapshotLoader()
    loader.load(bytes(build_batch(Record(0, 0, None, bytes.fromhex(line)) for line in GOLDEN.read_text().split())))
    assert loader.image() == image()
