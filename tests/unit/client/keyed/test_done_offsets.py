"""The commit of what is done: holes for records that were in hand at the last commit, and a frontier for the rest."""

import random

import pytest

from tailrace.client.keyed.done_offsets import DoneOffsets
from tailrace.model.committed_progress import CommittedProgress, Rectangle
from tailrace.model.key_ranges import HASH_SPACE, KeyRange, hash_of, of_slots

LAST_HASH = HASH_SPACE - 1
MEMBERS, LANES, INTERVALS = 32, 64, 3
STUCK = 3


def done_offsets(keys: str, start: int = 0) -> DoneOffsets:
    """With a record in hand for each letter, which is its key."""
    done = DoneOffsets(start)
    for number, key in enumerate(keys):
        done.add(start + number, key.encode())
    return done


def hash_of_letter(key: str) -> int:
    return hash_of(key.encode(), 0)


def test_young_records_hold_back_the_frontier() -> None:
    done = done_offsets("abcd")
    done.done(0)
    done.done(2)
    commit = done.commit(256)
    assert commit.rectangles == (Rectangle(0, 0),)
    assert (commit.stable_offset, commit.holes, commit.read_to) == (1, 0, 4)


def test_a_record_that_was_in_hand_at_the_last_commit_gets_a_hole() -> None:
    done = done_offsets("abcd")
    done.done(0)
    done.committed(done.commit(256))
    done.done(2)
    done.done(3)
    done.add(4, b"e")
    done.done(4)
    commit = done.commit(256)
    hole = hash_of_letter("b")
    assert commit.rectangles == (
        Rectangle(0, 0),
        Rectangle(1, 4, 0, hole - 1),
        Rectangle(1, 4, hole + 1, LAST_HASH),
    )
    assert (commit.stable_offset, commit.holes) == (1, 1)


def test_a_record_that_was_read_since_the_last_commit_has_no_hole() -> None:
    done = done_offsets("ab")
    done.committed(done.commit(256))
    done.add(2, b"c")
    done.add(3, b"d")
    done.done(0)
    done.done(3)
    commit = done.commit(256)
    assert commit.holes == 1
    assert {rectangle.last_offset for rectangle in commit.rectangles} == {0, 1}, "up to c"


def test_the_last_commit_covers_exactly_what_is_done() -> None:
    done = done_offsets("abcdefgh")
    for offset in (0, 2, 5, 7):
        done.done(offset)
    commit = done.commit(256, is_last=True)
    assert (commit.stable_offset, commit.holes, commit.left_out) == (1, 4, 0)
    committed = CommittedProgress(0).with_committed(commit.rectangles)
    covered = [at for at, key in enumerate("abcdefgh") if committed.is_committed(at, hash_of_letter(key))]
    assert covered == [0, 2, 5, 7]


def test_the_last_commit_has_holes_to_its_limit_and_repeats_what_lies_behind() -> None:
    done = done_offsets("abcd")
    done.done(3)
    commit = done.commit(2, is_last=True)
    assert (commit.holes, commit.left_out) == (2, 1)
    committed = CommittedProgress(0).with_committed(commit.rectangles)
    assert [committed.is_committed(at, hash_of_letter(key)) for at, key in enumerate("abcd")] == [False] * 4


def test_a_key_with_two_records_in_hand_has_its_hole_at_the_first() -> None:
    done = done_offsets("aba")
    done.committed(done.commit(256))
    done.done(1)
    commit = done.commit(256)
    covered = CommittedProgress(0).with_committed(commit.rectangles)
    assert commit.holes == 1
    assert not covered.is_committed(0, hash_of_letter("a"))
    assert covered.is_committed(1, hash_of_letter("b"))


def test_a_hole_at_the_first_hash_of_a_range_has_no_hashes_before_it() -> None:
    hole = hash_of_letter("a")
    done = DoneOffsets(0, key_ranges=[KeyRange(hole, hole + 9)])
    done.add(0, b"a")
    done.advance(2)
    done.committed(done.commit(256))
    assert done.commit(256).rectangles == (Rectangle(0, 1, hole + 1, hole + 9),)


def test_two_holes_have_their_own_offsets() -> None:
    done = done_offsets("abc")
    done.committed(done.commit(256))
    done.done(1)
    (low, first), (high, second) = sorted([(hash_of_letter("a"), 0), (hash_of_letter("c"), 2)])
    rectangles = set(done.commit(256).rectangles)
    assert rectangles == {
        Rectangle(0, 2, 0, low - 1),
        Rectangle(0, 2, low + 1, high - 1),
        Rectangle(0, 2, high + 1, LAST_HASH),
        Rectangle(0, max(first, second) - 1, *([low] * 2 if first > second else [high] * 2)),
    }


def test_beyond_the_limit_the_next_record_holds_back_the_frontier_and_a_commit_is_due_when_it_may_move() -> None:
    done = done_offsets("abcdef")
    done.committed(done.commit(2))
    done.done(3)
    commit = done.commit(2)
    assert (commit.holes, commit.left_out) == (2, 3)
    assert {rectangle.last_offset for rectangle in commit.rectangles} == {0, 1}, "c at 2 has no hole"
    done.committed(commit)
    assert not done.is_commit_due
    done.done(2)
    done.done(0)
    assert not done.is_commit_due
    done.done(4)
    assert done.is_commit_due
    done.committed(done.commit(2))
    assert not done.is_commit_due
    assert {rectangle.last_offset for rectangle in done.commit(2).rectangles} == {0, 4, 5}


def test_a_commit_without_left_out_records_is_not_due_before_its_time() -> None:
    done = done_offsets("ab")
    done.committed(done.commit(256))
    done.committed(done.commit(256))
    assert not done.is_commit_due


def test_with_nothing_in_hand_everything_that_was_read_is_covered() -> None:
    done = done_offsets("a")
    done.done(0)
    done.advance(500)
    assert done.commit(256).rectangles == (Rectangle(0, 499),)
    done.advance(100)
    assert done.stable_offset == 500


def test_nothing_was_read_and_nothing_is_covered() -> None:
    assert DoneOffsets(0).commit(256).rectangles == ()


def test_a_group_without_progress_covers_what_it_begins_behind() -> None:
    done = DoneOffsets(100)
    assert done.commit(256).rectangles == (Rectangle(0, 99),)


def test_records_that_retention_has_taken_are_covered() -> None:
    done = DoneOffsets(100, committed=CommittedProgress(40))
    assert done.commit(256).rectangles == (Rectangle(40, 99),)


def test_records_that_the_group_has_done_are_known() -> None:
    hole = hash_of_letter("a")
    committed = CommittedProgress(10).with_committed(
        [Rectangle(10, 19, 0, hole - 1), Rectangle(10, 19, hole + 1, LAST_HASH)]
    )
    done = DoneOffsets(10, committed=committed)
    assert (done.is_committed(9, b"a"), done.is_committed(10, b"a"), done.is_committed(10, b"b")) == (True, False, True)
    assert not done.is_committed(20, b"b")
    assert done.known_end == 20


def test_a_record_out_of_order_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="offset 1 after all below 3"):
        done_offsets("abc").add(1, b"a")


def _group(stuck_keys: int) -> CommittedProgress:
    """The progress of a group whose members split a partition by slots, each with its lanes busy at every commit."""
    chance = random.Random(7)
    members = [
        DoneOffsets(0, key_ranges=[of_slots(256 // MEMBERS * number, 256 // MEMBERS * (number + 1) - 1)])
        for number in range(MEMBERS)
    ]
    group = CommittedProgress(0)
    offset = 0
    in_hand: list[list[int]] = [[] for _ in members]
    stuck: list[list[int]] = [[] for _ in members]
    for _ in range(INTERVALS):
        for _ in range(MEMBERS * LANES * 10):
            key = b"%d" % chance.randrange(100_000)
            number = hash_of(key, offset) * MEMBERS // HASH_SPACE
            members[number].add(offset, key)
            if len(stuck[number]) < stuck_keys:
                stuck[number].append(offset)
            else:
                running = in_hand[number]
                running.append(offset)
                if len(running) > LANES:
                    members[number].done(running.pop(chance.randrange(LANES)))
            offset += 1
        for number in chance.sample(range(MEMBERS), MEMBERS):
            member = members[number]
            member.advance(offset)
            commit = member.commit(256)
            group = group.with_committed(commit.rectangles)
            member.committed(commit)
    return group


def _stored_bytes(group: CommittedProgress) -> int:
    """The bytes of the rectangles as deltas of variable length, or so."""
    numbers: list[int] = []
    reached, place = 0, group.stable_offset
    for first_offset, last_offset, first, last in group.rectangles():
        numbers += [first - reached, last - first, abs(first_offset - place), last_offset - first_offset]
        reached, place = max(first, reached), first_offset
    return sum(max(1, -(-abs(number).bit_length() // 7)) for number in numbers)


def test_a_group_of_32_members_with_64_lanes_has_few_rectangles() -> None:
    healthy = _group(0)
    assert healthy.rectangle_count <= 100
    assert _stored_bytes(healthy) <= 1_024


def test_a_stuck_key_has_a_hole_and_the_others_go_on() -> None:
    group = _group(STUCK)
    assert 100 < group.rectangle_count <= 100 + 2 * STUCK * MEMBERS
    assert group.stable_offset < 1_000 < group.end_offset


def test_hashes_of_others_are_not_covered() -> None:
    done = DoneOffsets(0, key_ranges=[KeyRange(10, 19), KeyRange(30, 39)])
    done.advance(5)
    assert done.commit(256).rectangles == (Rectangle(0, 4, 10, 19), Rectangle(0, 4, 30, 39))
