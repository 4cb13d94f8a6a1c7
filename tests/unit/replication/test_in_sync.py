from tailrace.model.ids import BrokerId
from tailrace.replication.in_sync import has_enough_in_sync

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


def test_min_insync_replicas_is_capped_by_the_number_of_replicas() -> None:
    assert has_enough_in_sync(in_sync=(ONE,), replicas=(ONE,), min_insync_replicas=2)
    assert not has_enough_in_sync(in_sync=(ONE,), replicas=(ONE, TWO, THREE), min_insync_replicas=2)
    assert has_enough_in_sync(in_sync=(ONE, THREE), replicas=(ONE, TWO, THREE), min_insync_replicas=2)
