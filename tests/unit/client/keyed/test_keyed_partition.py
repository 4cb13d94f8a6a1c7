"""A partition of a keyed consumer: records before the progress is known, a log that was cut, and room for progress."""

from tailrace.client.group.range_progress import RangeBudget
from tailrace.client.keyed.keyed_partition import KeyedPartition
from tailrace.client.keyed.outcomes import KeyedRecord
from tailrace.model.committed_progress import CommittedProgress, Rectangle
from tailrace.model.partitions import TopicPartition

NAME = TopicPartition("orders", 0)


def records(*offsets: int) -> list[KeyedRecord]:
    return [KeyedRecord(*NAME, offset, 0, b"k%d" % offset, b"v", ()) for offset in offsets]


def test_records_wait_for_the_progress_of_the_group() -> None:
    partition = KeyedPartition(NAME, 5, 256)
    assert partition.read(records(5, 6, 7), 8) == []
    assert partition.waits
    assert partition.commit() is None
    progress = CommittedProgress(5).with_committed([Rectangle(6, 6)])
    assert partition.open(progress) == records(5, 7)
    assert not partition.waits
    assert partition.read(records(8), 10) == records(8)
    commit = partition.commit()
    assert commit is not None
    assert (commit.stable_offset, commit.read_to) == (5, 10)


def test_an_offset_that_comes_again_shows_that_the_log_was_cut() -> None:
    partition = KeyedPartition(NAME, 5, 256)
    partition.open(None)
    partition.read(records(5, 6), 10)
    assert partition.cut_in(records(10), 11) is None
    assert partition.cut_in([], 10) is None
    assert partition.cut_in([], 9) == 9
    assert partition.cut_in(records(8, 9, 10, 11), 12) == 8, "it has grown again since"


def test_a_position_below_the_records_of_the_same_poll_shows_that_the_log_was_cut() -> None:
    """The records were at hand when the log was cut below the last of them."""
    partition = KeyedPartition(NAME, 5, 256)
    partition.open(None)
    partition.read(records(5, 6), 10)
    assert partition.cut_in(records(10, 11, 12), 12) == 12
    assert partition.cut_in(records(10, 11, 12), 7) == 7
    assert partition.cut_in(records(10, 11, 12), 13) is None
    assert partition.cut_in(records(9, 12), 12) == 9


def test_the_lowest_offset_that_is_not_done_is_known_from_the_start_on() -> None:
    partition = KeyedPartition(NAME, 5, 256)
    partition.read(records(5, 6), 10)
    assert partition.not_done == 5
    partition.open(CommittedProgress(5).with_committed([Rectangle(5, 5)]))
    assert partition.not_done == 6


def test_an_offset_that_went_back_since_the_start_was_found_is_no_start() -> None:
    """Unless the log does not have the offset any more, and reading was reset beyond it."""
    partition = KeyedPartition(NAME, 30, 256)
    assert partition.is_rewound(CommittedProgress(10))
    assert not partition.is_rewound(CommittedProgress(30))
    assert not partition.is_rewound(CommittedProgress(40))
    assert not partition.is_rewound(None)
    assert not KeyedPartition(NAME, 30, 256, is_displaced=True).is_rewound(CommittedProgress(10))


def test_a_partition_whose_log_was_cut_commits_nothing_and_reads_nothing() -> None:
    partition = KeyedPartition(NAME, 0, 256)
    partition.open(None)
    partition.read(records(0), 1)
    assert partition.commit() is not None
    partition.is_cut = True
    assert partition.commit() is None
    assert partition.waits


def test_from_three_quarters_on_only_records_that_come_again_are_read() -> None:
    partition = KeyedPartition(NAME, 0, 256)
    partition.open(CommittedProgress(0).with_committed([Rectangle(5, 9)]))
    commit = partition.commit()
    assert commit is not None
    partition.committed(commit, RangeBudget(2_999, 4_000))
    assert partition.has_room
    partition.committed(commit, RangeBudget(3_000, 4_000))
    assert partition.has_room, "up to offset 10 all is of the group's past"
    partition.read(records(0), 10)
    assert not partition.has_room
    partition.committed(commit, RangeBudget(100, 4_000))
    assert partition.has_room
    partition.committed(commit, None)
    assert partition.has_room


def test_a_refused_commit_has_half_the_holes_next_time_until_there_is_room() -> None:
    partition = KeyedPartition(NAME, 0, 4)
    partition.open(None)
    partition.read(records(*range(10)), 10)
    first = partition.commit()
    assert first is not None
    partition.committed(first, RangeBudget(1, 4_000))

    def holes() -> int:
        commit = partition.commit()
        assert commit is not None
        return commit.holes

    assert holes() == 4
    partition.refused()
    assert not partition.has_room
    assert holes() == 2
    partition.refused()
    partition.refused()
    assert holes() == 0
    partition.committed(first, RangeBudget(3_500, 4_000))
    assert holes() == 0
    partition.committed(first, RangeBudget(100, 4_000))
    assert holes() == 4
