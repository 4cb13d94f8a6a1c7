from tailrace.model.ids import BrokerId
from tailrace.replication.in_sync import advanced_high_watermark, has_enough_in_sync

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


def test_the_high_watermark_is_the_smallest_end_among_the_in_sync_replicas() -> None:
    ends = {ONE: 10, TWO: 7, THREE: 3}
    assert advanced_high_watermark(2, end_offsets=ends, in_sync=(ONE, TWO)) == 7
    assert advanced_high_watermark(2, end_offsets=ends, in_sync=(ONE, TWO, THREE)) == 3


def test_the_high_watermark_never_falls() -> None:
    assert advanced_high_watermark(8, end_offsets={ONE: 10, TWO: 7}, in_sync=(ONE, TWO)) == 8


def test_an_in_sync_replica_that_has_said_nothing_holds_the_high_watermark() -> None:
    assert advanced_high_watermark(2, end_offsets={ONE: 10}, in_sync=(ONE, TWO)) == 2
    assert advanced_high_watermark(2, end_offsets={ONE: 10}, in_sync=()) == 2


def test_min_insync_replicas_is_capped_by_the_number_of_replicas() -> None:
    assert has_enough_in_sync(in_sync=(ONE,), replicas=(ONE,), min_insync_replicas=2)
    assert not has_enough_in_sync(in_sync=(ONE,), replicas=(ONE, TWO, THREE), min_insync_replicas=2)
    assert has_enough_in_sync(in_sync=(ONE, THREE), replicas=(ONE, TWO, THREE), min_insync_replicas=2)
