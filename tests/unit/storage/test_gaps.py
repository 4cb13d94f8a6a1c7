import pytest

from tailrace.storage.checkpoints import read_gap_bound
from tailrace.storage.gaps import UNKNOWN_GAPS, Gaps
from tailrace.testing.disk import SimulatedDisk


def gaps(bound: int) -> tuple[SimulatedDisk, Gaps]:
    disk = SimulatedDisk()
    disk.make_dirs("/log")
    return disk, Gaps("/log", bound, files=disk)


def not_called() -> None:
    pytest.fail("nothing is to be synced")


def test_a_bound_only_rises_and_is_durable() -> None:
    disk, known = gaps(UNKNOWN_GAPS)
    assert not known.is_known
    for bound in (0, 20, 10):
        known.allow(bound)
    assert known.is_known
    disk.sync_dir("/")
    disk.power_cut()
    disk.reboot()
    assert (known.bound, read_gap_bound(disk, "/log")) == (20, 20)


def test_while_nothing_is_noted_a_compacted_log_may_have_gaps_anywhere() -> None:
    _, known = gaps(UNKNOWN_GAPS)
    assert known.is_legal_before(1000, is_compacted=True)
    assert not known.is_legal_before(1000, is_compacted=False)


def test_the_noted_gap_bound_holds_under_any_settings() -> None:
    _, known = gaps(20)
    for is_compacted in (False, True):
        assert known.is_legal_before(20, is_compacted=is_compacted)
        assert not known.is_legal_before(21, is_compacted=is_compacted)


def test_a_follower_notes_a_gap_with_some_room_so_that_not_every_batch_costs_a_write() -> None:
    disk, known = gaps(0)
    made_durable: list[int] = []
    known.accept(10, 5, is_expected=True, make_durable=lambda: made_durable.append(known.bound))
    assert made_durable == [0], "before the bound says anything of what is there"
    operations = disk.operations
    known.accept(30, 12, is_expected=False, make_durable=not_called)
    assert disk.operations == operations


def test_a_batch_that_goes_back_or_leaves_a_hole_in_a_plain_log_is_a_broken_invariant() -> None:
    _, known = gaps(0)
    with pytest.raises(AssertionError):
        known.accept(4, 5, is_expected=True, make_durable=not_called)
    with pytest.raises(AssertionError):
        known.accept(6, 5, is_expected=False, make_durable=not_called)
