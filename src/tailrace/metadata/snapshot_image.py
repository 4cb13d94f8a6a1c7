"""An image to the records of a snapshot and back, in slices, so that neither way blocks the event loop.

writer.append(islice(values, 500))      as often as there are values
loader.load(batch)                      for each batch of the snapshot
"""

from collections.abc import Iterator
from typing import Final

from tailrace.metadata.derive import Steps, finished
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage
from tailrace.metadata.records import encode_record
from tailrace.metadata.replay import Replay
from tailrace.metadata.snapshot_records import records_of
from tailrace.metadata.stored_partitions import RecordReader
from tailrace.model.errors import CorruptRecords
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records


def snapshot_values(image: ClusterImage) -> Iterator[bytes]:
    """The values of the records that state this image, one at a time: an image never changes, so pauses do no harm."""
    return map(encode_record, records_of(image))


_RECORDS_PER_STEP: Final = 1_000


class SnapshotLoader:
    """Makes the image that a snapshot states. Used once."""

    def __init__(self) -> None:
        self._replay = Replay(EMPTY_IMAGE)
        self._reader = RecordReader()
        self.records_count = 0

    def load(self, batches: Buffer) -> None:
        """Take the records of these whole batches; control batches say nothing of the image.

        Raises CorruptRecords, and KafkaError(UNSUPPORTED_VERSION) for records of a newer release.
        """
        finished(self.steps(batches))

    def steps(self, batches: Buffer) -> Steps[None]:
        """`load`, in steps of a few milliseconds: Kafka writes batches of up to 8 MiB."""
        for position, header in iter_batches(batches):
            if header.is_control:
                continue
            for index, record in enumerate(read_records(batches, position), 1):
                if record.value is None:
                    raise CorruptRecords(f"record {record.offset} of a snapshot has no value")
                self._replay.take(self._reader.read(record.value))
                self.records_count += 1
                if index % _RECORDS_PER_STEP == 0:
                    yield

    def image(self) -> ClusterImage:
        """The image, when all is loaded."""
        return self._replay.image()
