"""Loading a snapshot: what is not an image's record is refused, never skipped."""

import pytest

from tailrace.metadata.image import EMPTY_IMAGE
from tailrace.metadata.records.kinds import encode_record
from tailrace.metadata.records.topics import ConfigRecord, TopicRecord
from tailrace.metadata.snapshot_image import SnapshotLoader, snapshot_values
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.protocol.records.control import SnapshotFooterRecord, build_control_batch
from tailrace.protocol.records.record import Record, build_batch

TOPIC = encode_record(TopicRecord(name="orders", topic_id=bytes(range(16))))
CONFIG = encode_record(ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="7"))


def batch(*values: bytes | None) -> bytes:
    return bytes(build_batch(Record(0, 0, None, value) for value in values))


def test_an_image_is_loaded_batch_by_batch_and_control_batches_say_nothing_of_it() -> None:
    loader = SnapshotLoader()
    loader.load(batch(TOPIC) + bytes(build_control_batch([SnapshotFooterRecord()], timestamp=0)))
    loader.load(batch(CONFIG))
    image = loader.image()
    assert loader.records_count == 2
    assert list(snapshot_values(image)) == [TOPIC, CONFIG]
    assert image.topic_overrides("orders") == {"retention.ms": "7"}


def test_nothing_is_an_empty_image() -> None:
    assert SnapshotLoader().image() == EMPTY_IMAGE
    assert list(snapshot_values(EMPTY_IMAGE)) == []


def test_a_record_of_a_newer_release_ends_the_load() -> None:
    with pytest.raises(KafkaError) as caught:
        SnapshotLoader().load(batch(TOPIC, b"\1\x7f\0"))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_record_without_a_value_or_a_damaged_batch_ends_the_load() -> None:
    with pytest.raises(CorruptRecords, match="no value"):
        SnapshotLoader().load(batch(None))
    damaged = bytearray(batch(TOPIC))
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecords, match="checksum"):
        SnapshotLoader().load(bytes(damaged))
