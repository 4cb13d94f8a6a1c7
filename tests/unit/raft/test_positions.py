"""A leader's answers to a reader's position, against a model that has both logs whole."""

from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.raft.log import EpochRecord, LogImage, MemoryLog, RaftDisk, StoredSnapshot
from tailrace.raft.ports import SnapshotFile
from tailrace.raft.rpc import LogEnd, SnapshotId
from tailrace.raft.snapshots import Diverging, NeedsSnapshot, Valid, validate_position


def memory_log(epochs: list[int], start: int, snapshot_ends: list[int]) -> MemoryLog:
    disk = RaftDisk()
    disk.log = LogImage(0, 0, [EpochRecord(epoch, "") for epoch in epochs])
    disk.log.raise_start(start)
    for end in snapshot_ends:
        snapshot_id = SnapshotId(end, epochs[end - 1])
        disk.snapshots[snapshot_id] = StoredSnapshot(SnapshotFile(snapshot_id, 1, 0), b"x", None)
    return MemoryLog(disk)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], int, list[int], list[int]]:
    """The leader's epochs, its log start, the ends of its snapshots, and the reader's epochs.

    Epochs never fall, and a record's epoch and offset say what it is: two logs that have the same epoch at an offset
    are the same up to there, which is what Raft guarantees (log matching).
    """
    common = sorted(draw(st.lists(st.integers(1, 3), max_size=6)))
    leaders = common + sorted(draw(st.lists(st.sampled_from([4, 6]), max_size=5)))
    readers = common + sorted(draw(st.lists(st.sampled_from([3 if not common else max(3, common[-1]), 5]), max_size=5)))
    if len(readers) > len(common) and len(leaders) > len(common) and readers[len(common)] == leaders[len(common)]:
        readers = readers[: len(common)]
    ends = sorted(draw(st.sets(st.integers(1, len(leaders)), max_size=3))) if leaders else []
    start = draw(st.sampled_from([0, *range(1, max(ends) + 1)])) if ends else 0
    return leaders, start, [end for end in ends if end >= start], readers


@given(cases())
@settings(max_examples=400)
def test_a_position_is_valid_only_for_a_prefix_and_a_divergence_never_cuts_shared_records(
    case: tuple[list[int], int, list[int], list[int]],
) -> None:
    leaders, start, ends, readers = case
    log = memory_log(leaders, start, ends)
    offset, epoch = len(readers), readers[-1] if readers else 0
    shared = next(
        (
            index
            for index, (leader_epoch, other) in enumerate(zip(leaders, readers, strict=False))
            if leader_epoch != other
        ),
        min(len(leaders), len(readers)),
    )
    match validate_position(log, offset, epoch):
        case Valid():
            assert shared == offset
        case Diverging(end):
            assert shared < offset
            own = LogImage(0, 0, [EpochRecord(reader_epoch, "") for reader_epoch in readers]).end_for_epoch(end.epoch)
            assert shared <= (0 if own is None else min(own.offset, end.offset)) < offset
        case NeedsSnapshot(snapshot_id):
            assert snapshot_id == SnapshotId(ends[-1], leaders[ends[-1] - 1])
            assert offset <= start or shared < offset


@given(cases())
@settings(max_examples=200)
def test_a_reader_and_a_leader_agree_in_the_end(case: tuple[list[int], int, list[int], list[int]]) -> None:
    """However the reader's log parts from the leader's, cutting and loading end in a valid position."""
    leaders, start, ends, readers = case
    log = memory_log(leaders, start, ends)
    reader = LogImage(0, 0, [EpochRecord(epoch, "") for epoch in readers])
    for _ in range(20):
        match validate_position(log, reader.end, reader.last_epoch):
            case Valid():
                return
            case Diverging(LogEnd(epoch=epoch, offset=offset)):
                own = reader.end_for_epoch(epoch)
                reader.truncate(reader.start if own is None else min(own.offset, offset))
            case NeedsSnapshot(SnapshotId(end_offset=end_offset, epoch=epoch)):
                reader = LogImage(end_offset, epoch)
    raise AssertionError("no end of cutting and loading")
