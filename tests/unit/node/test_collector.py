"""The garbage collector rests while long work is under way, and skips the objects that were made in it later on."""

import gc
from collections.abc import Iterator

import pytest

from tailrace.node.collector import Collector


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_it_rests_until_the_last_work_is_over() -> None:
    collector = Collector()
    collector.long_work(True)
    collector.long_work(True)
    assert not gc.isenabled()
    collector.long_work(False)
    assert not gc.isenabled()
    collector.long_work(False)
    assert gc.isenabled()


def test_what_was_made_is_not_looked_through_again() -> None:
    collector = Collector()
    collector.long_work(True)
    made = [[number] for number in range(1_000)]
    before = gc.get_freeze_count()
    collector.long_work(False)
    assert gc.get_freeze_count() >= before + len(made)
