"""A log on a disk that loses power and keeps what it likes of what was not synced, and in which a bit flips.

A run is many short lives of a log: appends, flushes, checkpoints, new leader epochs, rolls; then the process is killed
or the power goes, perhaps in the middle of a flush; then, perhaps, a bit flips in a segment; then the log is opened.
"""

from random import Random
from typing import Final

from simulation.harness.breach import Breach
from tailrace.model.errors import CorruptRecords, KafkaError, StorageError
from tailrace.model.partitions import TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import HEADER_SIZE, iter_batches
from tailrace.storage import AppendBatch, Log, ReadLimits, checkpoints
from tailrace.testing.disk import PowerCut, SimulatedDisk
from testkit.records.batches import stored_batch

LIVES: Final = 60
COMPLETE: Final = "no log that opens as complete lacks a batch below its bound"
NO_DAMAGE: Final = "a crash alone damages nothing"
AS_WRITTEN: Final = "records are served as they were written"
_ROOT: Final = "/data"
_PARTITION: Final = TopicPartition("orders", 0)
_DIRECTORY: Final = f"{_ROOT}/{_PARTITION}"
_CONFIG: Final = TopicConfig(segment_bytes=900, index_interval_bytes=150, retention_ms=-1)
_MOST_STEPS: Final = 30
_NOT_CHECKED_BYTES: Final = 17
"""Base offset, length, leader epoch and magic: no checksum covers these fields."""


class _Life:
    """The life of a log from its first batch to its recovery."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.disk = SimulatedDisk.with_directory(_ROOT, random.getrandbits(32))
        self.log = Log.open(_DIRECTORY, files=self.disk, config=_CONFIG, now_ms=0)
        self.written: dict[int, AppendBatch] = {}
        self.epoch = 0
        self.noted = {checkpoints.RECOVERY_POINTS: 0, checkpoints.HIGH_WATERMARKS: 0}
        self.reported_end = 0
        """The offset up to which the log has reported that everything is flushed."""
        self.has_lost_power = self.is_flipped = False

    def live(self) -> None:
        """Go on until an event ends this life."""
        random = self.random
        if random.random() < 0.5:
            self.disk.cut_power_at(
                self.disk.operations + random.randrange(5, 4 * _MOST_STEPS), after=random.random() < 0.5
            )
        try:
            for _ in range(random.randrange(4, _MOST_STEPS)):
                random.choices((self._append, self._flush, self._note, self._elect), (6, 5, 1, 1))[0]()
            if random.random() < 0.5:
                self.disk.power_cut()
                self.has_lost_power = True
        except PowerCut:
            self.has_lost_power = True
        if self.has_lost_power:
            self.disk.reboot()
        self.disk.forget_faults()

    def _append(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            batch = stored_batch(self.log.log_end_offset, self.random.randrange(1, 4), leader_epoch=self.epoch)
            self.written[batch.header.base_offset] = batch
            self.log.append([batch])

    def _flush(self) -> None:
        ticket = self.log.flushes.begin()
        ticket.sync()
        self.log.flushes.finish(ticket)
        self.reported_end = self.log.flushed_offset

    def _note(self) -> None:
        name = self.random.choice(tuple(self.noted))
        checkpoints.write_offsets(self.disk, _ROOT, name, {_PARTITION: self.reported_end})
        self.noted[name] = self.reported_end

    def _elect(self) -> None:
        self.epoch += 1

    def flip(self) -> None:
        """Flip one bit of a segment, perhaps."""
        names = [name for name in self.disk.list_dir(_DIRECTORY) if name.endswith(".log")] if self._is_there else []
        if not names:
            return  # the power went before the first name was durable
        path = f"{_DIRECTORY}/{self.random.choice(names)}"
        size_bytes = self.disk.size_of(path)
        if size_bytes and self.random.random() < 0.6:
            self.disk.flip_bit(path, self.random.randrange(size_bytes), self.random.randrange(8))
            self.is_flipped = True

    @property
    def _is_there(self) -> bool:
        return self.disk.exists(_DIRECTORY)

    @property
    def bound(self) -> int:
        """A log that ends below this offset must report the loss. A power cut may take the log's own note."""
        return max(self.noted.values()) if self.has_lost_power and self.is_flipped else self.reported_end

    def verify(self) -> None:
        """Open the log, and compare it with what was promised."""
        try:
            log = Log.open(
                _DIRECTORY,
                files=self.disk,
                config=_CONFIG,
                now_ms=0,
                recovery_point=self._read(checkpoints.RECOVERY_POINTS),
                high_watermark=self._read(checkpoints.HIGH_WATERMARKS),
                leader_epoch=self.epoch,
            )
        except CorruptRecords as fault:
            if not self.is_flipped:
                raise Breach(NO_DAMAGE, fault.detail) from fault
            return
        if log.recovery.lost_acknowledged and not self.is_flipped:
            raise Breach(NO_DAMAGE, log.recovery.cut_reason)
        if log.log_end_offset < self.bound and not log.recovery.lost_acknowledged:
            raise Breach(COMPLETE, f"it ends at {log.log_end_offset}, and {self.bound} was acknowledged")
        self._read_all(log)

    def _read(self, name: str) -> int:
        return checkpoints.read_offsets(self.disk, _ROOT, name).get(_PARTITION, 0)

    def _read_all(self, log: Log) -> None:
        offset = log.log_start_offset
        try:
            while offset < log.log_end_offset:
                result = log.read(ReadLimits(offset, self.random.randrange(1, 600)))
                self._hold(b"".join(result.records))
                offset = result.next_offset
        except StorageError as fault:
            if not self.is_flipped:
                raise Breach(NO_DAMAGE, fault.detail) from fault
        except KafkaError as fault:
            raise Breach(AS_WRITTEN, fault.detail) from fault

    def _hold(self, served: bytes) -> None:
        """Check the fields that no checksum covers; a client checks the other fields."""
        try:
            headers = list(iter_batches(served))
        except CorruptRecords:
            return  # what the checksum covers: the client notices
        for position, header in headers:
            batch = self.written.get(header.base_offset)
            start = served[position : position + _NOT_CHECKED_BYTES]
            if batch is None or start != bytes(batch.buffer[:_NOT_CHECKED_BYTES]):
                raise Breach(AS_WRITTEN, f"a batch at offset {header.base_offset} of {HEADER_SIZE} bytes and more")


def run_seed(seed: int) -> None:
    """Raises Breach with the law that is broken."""
    for number in range(LIVES):
        life = _Life(Random(seed * LIVES + number))
        try:
            life.live()
            life.flip()
            life.verify()
        except Breach:
            raise
        except KafkaError as fault:
            raise Breach(NO_DAMAGE, fault.detail) from fault
