"""Assignments in records and answers, byte by byte: members of both protocols, from first join to last leave."""

from pathlib import Path
from typing import Any

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.protocol.schema import encode_bytes
from tailrace.storage import ReadLimits
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.classic_members import ClassicTableMember
from testkit.coordinators.consumer_groups import LEAVE_FOR_A_WHILE, TableMember
from testkit.coordinators.group_path import GroupPath
from testkit.nodes.data_path import Exchange

GOLDEN = Path(__file__).parents[3] / "golden" / "consumer_group.txt"
TOPICS = ("later", "orders", "returns")


class _RecordingPath(GroupPath):
    """Keeps every exchange, with the version of its answer."""

    exchanges: list[tuple[Exchange, int]]

    def send(self, request: Any, version: int, **options: Any) -> Exchange:
        exchange = super().send(request, version, **options)
        self.exchanges.append((exchange, version))
        return exchange


def _history() -> _RecordingPath:
    """Joins, revocations, a static member that goes and comes, a lost answer, conversions in both directions."""
    node = _RecordingPath("/data", files=SimulatedDisk(seed=1))
    node.exchanges = []
    node.create_topics("orders", partitions=7)
    node.create_topics("returns", partitions=2)
    node.find_coordinator("g")
    classic = ClassicTableMember(node, "c", topics=TOPICS, is_cooperative=True)
    for _ in range(3):
        classic.act()
    a = TableMember(node, "a", instance_id="i", topics=TOPICS)
    b = TableMember(node, "b", assignor="range")
    members: tuple[TableMember | ClassicTableMember, ...] = (a, classic, b)
    a.join()
    _take_turns(members[:2])
    b.join()
    _take_turns(members)
    a.beat(epoch=a.epoch - 1)
    a.leave(LEAVE_FOR_A_WHILE)
    a.name = "a2"
    a.join()
    b.subscribe("returns")
    _take_turns(members)
    node.create_topics("later", partitions=3)
    _take_turns(members)
    node.send(ConsumerGroupDescribeRequest(group_ids=("g",)), 1)
    b.leave()
    _take_turns(members[:2])
    a.leave()
    _take_turns((classic,))
    return node


def _take_turns(members: tuple[TableMember | ClassicTableMember, ...], rounds: int = 6) -> None:
    for _ in range(rounds):
        for member in members:
            if isinstance(member, ClassicTableMember):
                member.act()
            elif member.epoch:
                assert member.beat() is ErrorCode.NONE
            else:
                member.join()


def _lines(node: _RecordingPath) -> list[str]:
    answers = [
        f"{type(exchange.response).__name__}-{version} {encode_bytes(exchange.response, version).hex()}"
        for exchange, version in node.exchanges
        if exchange.is_answered
    ]
    data = node.coordinators.host_of("g").partition.read(ReadLimits(0, 1 << 24)).records
    records = [record for position, _ in iter_batches(data) for record in read_records(data, position)]
    return answers + [f"{(record.key or b'').hex()} {(record.value or b'').hex()}" for record in records]


def test_assignments_have_the_bytes_they_always_had() -> None:
    assert _lines(_history()) == GOLDEN.read_text().splitlines()
