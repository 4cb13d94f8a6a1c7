"""A node with a group, for random histories: it loses power, and its coordinator's state is a replay of its log."""

from collections.abc import Mapping
from random import Random
from typing import Any

from tailrace.coordinators.groups.records import GroupLogRecord, decode_record, encode_record
from tailrace.coordinators.groups.store import GroupStore
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.storage import ReadLimits
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.group_path import GroupPath


class ReplayedNode:
    """The node, which coordinates the group `g`."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self.files = SimulatedDisk(seed=1)
        self._starts = 1
        self.node = GroupPath("/data", files=self.files)
        for topic, count in partitions.items():
            self.node.create_topics(topic, partitions=count)
        self.node.find_coordinator("g")

    def restart(self) -> None:
        """Cut the power, and start a new node."""
        before = self.committed()
        self.files.power_cut()
        self.files.reboot()
        self._starts += 1
        self.node = GroupPath("/data", files=self.files, start=self._starts)
        assert self.committed() == before, "a restart is a replay"

    def committed(self) -> dict[str, Any]:
        """The groups in the log, by name."""
        hosts = self.node.coordinators.active_hosts()
        return {name: group for host in hosts for name, group in host.machine.committed.groups.items()}

    def check_compacted(self, luck: Random) -> None:
        """Check that the next coordinator has the state of this coordinator, whatever compaction removes."""
        records = self._log()
        last = {encode_record(record)[0]: index for index, record in enumerate(records)}
        store = GroupStore()
        for index, record in enumerate(records):
            if last[encode_record(record)[0]] == index or luck.random() < 0.5:
                store.apply(record)
        assert store.groups == {name: group for name, group in self.committed().items() if name == "g"}

    def _log(self) -> list[GroupLogRecord]:
        data = self.node.coordinators.host_of("g").partition.read(ReadLimits(0, 1 << 24)).records
        decoded = [
            decode_record(record.key, record.value)
            for position, _ in iter_batches(data)
            for record in read_records(data, position)
        ]
        return [record for record in decoded if record is not None]
