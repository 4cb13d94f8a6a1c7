"""A segment is swapped in, and the power goes: what is found is whole, the old way or the new."""

from itertools import count

import pytest

from tailrace.model.topic_config import TopicConfig
from tailrace.storage.segment_files.segment_limits import SegmentLimits
from tailrace.storage.segment_files.swap import CLEANED_SUFFIX, finish_swaps, swap_in
from tailrace.testing.disk import PowerCut, SimulatedDisk
from testkit.records.batches import stored_batch

DIRECTORY = "/data/orders-0"
STEM = f"{DIRECTORY}/{0:020d}"
OLD, NEW = stored_batch(0, text="old").buffer, stored_batch(0, text="new").buffer


def ready_disk(seed: int) -> SimulatedDisk:
    """A segment, and the segment that is to take its place; both have aborted transactions."""
    disk = SimulatedDisk.with_directory(DIRECTORY, seed)
    disk.sync_dir("/data")
    for suffix, content in (
        (".log", OLD),
        (".index", b""),
        (".timeindex", b""),
        (".txnindex", b"old"),
        (".khx", b"old"),
    ):
        disk.write_durably(STEM + suffix, content)
    for suffix, content in ((".log", NEW), (".index", b""), (".timeindex", b""), (".txnindex", b"new")):
        disk.write_durably(STEM + suffix + CLEANED_SUFFIX, content)
    disk.sync_dir(DIRECTORY)
    return disk


@pytest.mark.parametrize("seed", range(30))
def test_a_segment_never_comes_without_its_aborted_transactions(seed: int) -> None:
    """Nothing makes that file anew, and without it readers of committed data get what was aborted."""
    for operation in count(1):
        disk = ready_disk(seed)
        before = disk.operations
        disk.cut_power_at(before + operation)
        try:
            swap_in(disk, DIRECTORY, 0, (0,))
        except PowerCut:
            disk.reboot()
        else:
            break
        finish_swaps(disk, DIRECTORY, limits=SegmentLimits(TopicConfig(), name=""))
        is_new = disk.read_bytes(f"{STEM}.log") == NEW
        assert disk.exists(f"{STEM}.txnindex"), disk.history[before:]
        # Too much may be said: of the old transactions, whose markers are all there.
        assert is_new or disk.read_bytes(f"{STEM}.txnindex") == b"old"
        assert not (is_new and disk.exists(f"{STEM}.khx")), disk.history[before:]
        others = [name for name in disk.list_dir(DIRECTORY) if not name.endswith(("index", ".khx"))]
        assert others == [f"{0:020d}.log"]
    assert operation > 5, "the power was cut at few operations"
