"""Nodes with a writer of a sink."""

from typing import Any

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.transactions import ListTransactionsRequest
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.sink_path import SinkWriter, find_sink
from testkit.coordinators.transaction_path import TransactionPath
from testkit.nodes.ports import HoldingDisk

E = ErrorCode


def sink_node(
    files: SimulatedDisk | None = None,
    *,
    start: int = 1,
    clock: ManualClock | None = None,
    disk: HoldingDisk | None = None,
) -> TransactionPath:
    node = TransactionPath("/data", files=files or SimulatedDisk(seed=1), start=start, clock=clock, disk=disk)
    if start == 1:
        node.create_topics("orders", "bills")
        find_sink(node)
    return node


def writing(**options: Any) -> tuple[TransactionPath, SinkWriter]:
    """A node, and a writer of its only sink."""
    node = sink_node()
    return node, SinkWriter(node, "r1", **options)


versions = pytest.mark.parametrize("version", [0, 2])


def open_names(node: TransactionPath) -> list[str]:
    found = node.send(ListTransactionsRequest(), 1).response.transaction_states
    return sorted(each.transactional_id for each in found)
