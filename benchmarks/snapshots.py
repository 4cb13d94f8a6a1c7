"""A snapshot of about 100 MB of metadata: how fast it is written, checked and loaded, and how long nothing else runs.

Real records, real files, the writer fed in slices as a host does it between two turns of its event loop: the longest
slice is the stall. Rates are of CPU time too, which a busy machine changes less. No peer: the text's own figures
are a load at 1 MB/s.

    python benchmarks/snapshots.py [--megabytes 100] [--slice 100]
"""

import argparse
import gc
import tempfile
import time
from itertools import islice

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage
from tailrace.metadata.records import MetadataRecord, PartitionRecord, TopicRecord
from tailrace.metadata.replay import apply_all
from tailrace.metadata.snapshot_image import SnapshotLoader, snapshot_values
from tailrace.model.partitions import METADATA_TOPIC, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.raft.rpc import SnapshotId
from tailrace.server.hosts.quorum_log import QuorumLog
from tailrace.storage import OsFiles
from tailrace.storage.snapshot_writer import Publication

ID = SnapshotId(1, 1)
PARTITIONS = 50
RECORD_BYTES = 128
"""About what a partition of three replicas takes, record framing included."""


def image_of(megabytes: float) -> ClusterImage:
    """Topics of 50 partitions, as many as give a snapshot of this size."""
    directories = tuple(bytes([number]) * 16 for number in (1, 2, 3))

    def records() -> list[MetadataRecord]:
        made: list[MetadataRecord] = []
        for number in range(int(megabytes * 1e6 / RECORD_BYTES / PARTITIONS)):
            topic_id = (number + 1).to_bytes(16, "big")
            made.append(TopicRecord(name=f"topic-{number}", topic_id=topic_id))
            made += [
                PartitionRecord(
                    partition_id=partition,
                    topic_id=topic_id,
                    replicas=(1, 2, 3),
                    isr=(1, 2, 3),
                    leader=1,
                    leader_epoch=0,
                    partition_epoch=0,
                    directories=directories,
                )
                for partition in range(PARTITIONS)
            ]
        return made

    return apply_all(EMPTY_IMAGE, records())[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--slice", type=int, default=100, help="records per slice")
    parser.add_argument("--no-gc", action="store_true", help="load without the garbage collector")
    options = parser.parse_args()
    image = image_of(options.megabytes)
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)  # as a node does
    with tempfile.TemporaryDirectory() as directory:
        log = QuorumLog.open(
            directory, TopicPartition(METADATA_TOPIC, 0), files=OsFiles(), config=TopicConfig(), now_ms=0
        )
        _write(log, image, options.slice)
        if options.no_gc:
            gc.disable()
        _load(log, image)
        log.close()


def _write(log: QuorumLog, image: ClusterImage, slice_size: int) -> None:
    begun, cpu = time.perf_counter(), time.process_time()
    writer = log.begin_snapshot(ID, last_contained_ms=0, voters=None)
    values = snapshot_values(image)
    longest, before = 0.0, begun
    while part := list(islice(values, slice_size)):
        writer.append(part)
        now = time.perf_counter()
        longest, before = max(longest, now - before), now
    writer.seal()
    written, cpu = time.perf_counter(), time.process_time() - cpu
    publication = Publication(writer.part)
    publication.carry_out()
    published = time.perf_counter()
    log.finish_snapshot(publication)
    size = writer.part.size_bytes / 1e6
    _tell(f"{size:.1f} MB, {writer.records_count} records")
    _tell(f"written in slices of {slice_size}: {_rates(size, written - begun, cpu)}")
    _tell(f"longest slice: {longest * 1e3:.1f} ms")
    _tell(f"checked, synced, renamed: {published - written:.2f} s, {size / (published - written):.0f} MB/s")


def _load(log: QuorumLog, image: ClusterImage) -> None:
    size = log.snapshots[0].size_bytes / 1e6
    cpu = time.process_time()
    begun = before = time.perf_counter()
    loader = SnapshotLoader()
    longest = 0.0
    for chunk in log.load(ID):
        loader.load(chunk.content)
        now = time.perf_counter()
        longest, before = max(longest, now - before), now
    read = time.perf_counter()
    loaded = loader.image()
    done, cpu = time.perf_counter(), time.process_time() - cpu
    assert loaded == image, "what was loaded is what was written"
    _tell(f"loaded: {_rates(size, done - begun, cpu)}")
    _tell(f"longest batch: {longest * 1e3:.1f} ms; the image at the end: {(done - read) * 1e3:.1f} ms")


def _rates(megabytes: float, seconds: float, cpu_seconds: float) -> str:
    return f"{seconds:.2f} s, {megabytes / seconds:.1f} MB/s; {megabytes / cpu_seconds:.1f} MB per CPU second"


def _tell(line: str) -> None:
    print(line)


if __name__ == "__main__":
    main()
