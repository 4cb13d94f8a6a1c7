"""A disk with a log that was not closed."""

import pytest

from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch
from unit.storage.recovery.recovered_logs import COUNT, open_log


@pytest.fixture
def disk() -> SimulatedDisk:
    """A disk with a log of 30 batches of one record, flushed, not closed."""
    disk = SimulatedDisk()
    log = open_log(disk)
    for offset in range(COUNT):
        log.append([stored_batch(offset, producer_id=4, base_sequence=offset, leader_epoch=offset // 12)])
    log.flush()
    return disk
