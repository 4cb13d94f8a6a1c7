"""The batches that a key index looks at."""

import pytest

from tailrace.protocol.records.batch import BatchHeader
from tailrace.storage import Buffer
from tailrace.storage.keys.batch_slots import BatchGroup


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of the batches that were looked at, in that order."""
    offsets: list[int] = []
    add = BatchGroup.add

    def noted(group: BatchGroup, stored: Buffer, header: BatchHeader) -> None:
        offsets.append(header.base_offset)
        add(group, stored, header)

    monkeypatch.setattr(BatchGroup, "add", noted)
    return offsets
