"""The power goes at every operation of starting and of creating topics: what was acknowledged is there afterwards.

The same runs with a disk that answers before its sync MUST lose something, else they prove nothing.
"""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from tailrace.metadata.commands import ControllerResponse, TopicsCreated
from tailrace.model.errors import CorruptRecords, KafkaError
from tailrace.model.ids import TopicId
from tailrace.protocol.records.batch import iter_batches
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import PowerCut, SimulatedDisk
from tailrace.testing.disk_contents import SECTOR_BYTES
from testkit.nodes.admin_path import AdminPath
from testkit.nodes.faults import IdleDisk
from testkit.nodes.ports import ImmediateDisk

DATA = "/data"
LOG = "/data/__cluster_metadata-0/00000000000000000000.log"
PARTITIONS = 9
SEEDS = range(2)
TOPICS = ("first", "second.topic", "third")


def start(files: SimulatedDisk, number: int, *, hasty: bool = False) -> AdminPath:
    clock = ManualClock()
    disk = IdleDisk(clock.call_soon) if hasty else ImmediateDisk(clock.call_soon)
    return AdminPath(DATA, files=files, clock=clock, disk=disk, start=number)


class Acknowledged:
    """The answers to clients."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicId] = {}

    def take(self, answer: ControllerResponse | KafkaError) -> None:
        assert isinstance(answer, TopicsCreated), answer
        (result,) = answer.results
        assert not hasattr(result, "error"), result
        self.topics[result.name] = result.topic_id


def create_topics(node: AdminPath, acknowledged: Acknowledged) -> None:
    for name in TOPICS:
        for answer in node.create_topics(name, partitions=PARTITIONS):
            acknowledged.take(answer)


def losses(files: SimulatedDisk, acknowledged: Acknowledged) -> list[str]:
    """Start again and see what is missing; whatever was lost, the node must be whole."""
    files.reboot()
    node = start(files, 2)
    assert node.is_ready
    image = node.controller.image
    for name in image.topics:
        # One batch: a topic is there with all its partitions, and served, or is absent.
        assert sorted(image.topics[name].partitions) == list(range(PARTITIONS))
        for number in range(PARTITIONS):
            assert node.table.get(name, number).is_leader
    assert set(image.topics) <= set(TOPICS)
    lost = [name for name in acknowledged.topics if image.topics.get(name) is None]
    lost += [
        name
        for name, topic_id in acknowledged.topics.items()
        if name in image.topics and image.topics[name].topic_id != topic_id
    ]
    create_topics_again(node, set(image.topics))
    return lost


def create_topics_again(node: AdminPath, there: set[str]) -> None:
    """The log goes on where it ended."""
    acknowledged = Acknowledged()
    for name in TOPICS:
        if name not in there:
            for answer in node.create_topics(name, partitions=PARTITIONS):
                acknowledged.take(answer)
    assert set(acknowledged.topics) | there == set(TOPICS)


def operations_of_a_run() -> tuple[int, int]:
    """After how many operations a node is ready, and after how many all topics are there."""
    files = SimulatedDisk()
    node = start(files, 1)
    ready = files.operations
    create_topics(node, Acknowledged())
    return ready, files.operations


def cuts(seed: int) -> Iterator[tuple[int, bool]]:
    """Before and after every operation."""
    _, last = operations_of_a_run()
    assert last > 20
    for operation in range(1, last + 1):
        yield operation, bool((operation + seed) % 2)


def run_with_a_cut(seed: int, operation: int, *, after: bool, hasty: bool = False) -> list[str]:
    files = SimulatedDisk(seed=seed * 1000 + operation)
    files.cut_power_at(operation, after=after)
    acknowledged = Acknowledged()
    with suppress(PowerCut):
        create_topics(start(files, 1, hasty=hasty), acknowledged)
    if files.has_power:
        files.power_cut()
    return losses(files, acknowledged)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_acknowledged_topic_survives_a_power_cut_at_any_operation(seed: int) -> None:
    for operation, after in cuts(seed):
        assert run_with_a_cut(seed, operation, after=after) == [], f"operation {operation}, after={after}"


def test_a_host_that_answers_before_the_sync_is_found_out() -> None:
    lost = 0
    for seed in SEEDS:
        for operation, after in cuts(seed):
            # It also believes its own checkpoints: then the log is shorter than it should be, and refused.
            with suppress(CorruptRecords):
                lost += len(run_with_a_cut(seed, operation, after=after, hasty=True))
    assert lost > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_epochs_of_the_log_never_fall_whatever_power_cuts_come_during_starts(seed: int) -> None:
    """A start is cut at a later operation than the start before; in the end the log is one story."""
    files = SimulatedDisk(seed=seed)
    acknowledged = Acknowledged()
    epochs: list[int] = []
    create_topics(start(files, 1), acknowledged)
    for number in range(2, 40):
        files.cut_power_at(files.operations + number, after=bool(number % 2))
        with suppress(PowerCut):
            epochs.append(start(files, number).controller.leader_epoch)
        if files.has_power:
            files.power_cut()
        files.reboot()
    node = start(files, 100)
    assert {name: node.topic_id(name) for name in TOPICS} == acknowledged.topics
    epochs.append(node.controller.leader_epoch)
    assert epochs == sorted(set(epochs)), "no epoch is led twice"
    written = [header.partition_leader_epoch for _, header in iter_batches(files.read_bytes(LOG))]
    assert written == sorted(written)


def test_a_topic_is_large_enough_to_be_torn() -> None:
    """Else the torn writes of the simulated disk would prove nothing about half a batch."""
    files = SimulatedDisk()
    node = start(files, 1)
    before = files.size_of(LOG)
    node.create_topics("wide", partitions=PARTITIONS)
    assert files.size_of(LOG) - before > SECTOR_BYTES
