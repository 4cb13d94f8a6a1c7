"""The longest stall of a node's event loop when a broker is fenced: 20 ms at most (decision 0047)."""

import asyncio
import time
from itertools import islice
from pathlib import Path

from benchmarks.lines.metadata.timed_replica import (
    FENCED,
    Replica,
    image_of,
    opened_log,
    quiet_collector,
    write_snapshot,
)
from benchmarks.peers.peer import directory
from benchmarks.results.figures import Column, Section, Target
from benchmarks.results.rounds import Rounds
from tailrace.metadata.broker_commands import FenceBroker
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.views import Views
from tailrace.model.ids import BrokerId
from tailrace.node.settings.config import NodeConfig
from tailrace.replication.leadership import DEFAULT_LAG_MS
from tailrace.server.admin.config_entries import LiveSettings
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.replicas.failures import ReplicaFailures
from tailrace.server.replicas.metadata_applier import ImageLeaders, MetadataApplier

NAME = "fence-stall"
DEFAULT = 100_000
BROKERS = 10
PER_TOPIC = 10
HERE = BrokerId(1)
AWAKE = 1_000
"""The number of logs in use on this broker, which has 30,000 partitions."""
LONGEST_TURN_MS = 20.0
DECIDED, REPLAYED = "decided and acted on", "snapshot loaded, record replayed"

CONDITIONS = (
    f"{BROKERS} brokers, topics of {PER_TOPIC} partitions, replication factor 3: three tenths of all partitions are on "
    f"the broker that is fenced. One voter on a real disk, with a broker's partitions in the same process, {AWAKE:,} "
    "of them in use: the command is derived, encoded, appended, flushed and applied, and every partition on the "
    "voter's broker takes its new state. Then the replica is started anew from its snapshot, and reads the record "
    "from its log. CPU time of the event loop's thread, turn by turn: the work of other processes is not in it."
)


def measure(rounds: Rounds, partitions: int) -> Section:
    image = image_of(partitions // PER_TOPIC, PER_TOPIC, BROKERS)
    test = f"{image.replica_counts[FENCED]:,} of {partitions:,} partitions"
    for _ in rounds:
        with directory() as home:
            asyncio.run(_round(rounds, test, home, image))
    columns = (
        Column("longest_turn_ms", "longest turn, ms", digits=1, shows_rounds=True),
        Column("CPU_ms", "CPU ms"),
        Column("turns", "turns"),
        Column("wall_ms", "ms until it was answered"),
    )
    targets = [
        Target(test=test, server=what, quantity="longest_turn_ms", limit=LONGEST_TURN_MS, unit="ms", is_upper=True)
        for what in (DECIDED, REPLAYED)
    ]
    return rounds.section(
        NAME,
        "A broker is fenced: how long the event loop stands",
        CONDITIONS,
        columns,
        targets,
    )


async def _round(rounds: Rounds, test: str, home: Path, image: ClusterImage) -> None:
    log = opened_log(home)
    write_snapshot(log, image)
    log.close()
    quiet_collector()
    async with Replica(home) as replica:
        partitions = await _broker_beside(replica)
        broker = replica.controller.image.brokers[FENCED]
        replica.turns.seconds.clear()
        began = time.perf_counter()
        await replica.ask(FenceBroker(broker_id=FENCED, broker_epoch=broker.broker_epoch))
        _record(rounds, test, DECIDED, replica.turns.seconds, time.perf_counter() - began)
        _check(replica.controller.image)
        _check_partitions(replica.controller.image, partitions)
        end_offset = replica.controller.applied_end_offset
    began = time.perf_counter()
    async with Replica(home) as again:
        assert again.controller.applied_end_offset >= end_offset
        _record(rounds, test, REPLAYED, again.turns.seconds, time.perf_counter() - began)
        _check(again.controller.image)


async def _broker_beside(replica: Replica) -> PartitionTable:
    """The partitions of a broker on this node, all durable and some partitions in use."""
    table_of_all = PartitionTable(
        LogDirectory(str(replica.directory), files=replica.files, is_durable=False),
        broker_id=HERE,
        disk=replica.disk,
        syncing_disk=replica.disk,
        clock=replica.clock,
        is_flushed=True,
        replica_lag_time_max_ms=DEFAULT_LAG_MS,
        leaders=ImageLeaders(replica.controller, Views()),
        failures=ReplicaFailures(
            broker_id=HERE,
            controller=replica.controller,
            clock=replica.clock,
            on_leaving=lambda _, __: None,
            on_left=lambda _, __: None,
            on_staying=lambda _, __: None,
        ),
    )
    table_of_all.open()
    settings = LiveSettings(NodeConfig({"node.id": str(HERE)}))
    applier = MetadataApplier(partitions=table_of_all, broker_id=HERE, settings=settings)
    made: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def load() -> None:
        applier.load(replica.controller.image)
        table_of_all.when_made(lambda: made.set_result(None))

    replica.turns.run(load)
    await made
    replica.controller.on_image(applier.on_image)
    replica.controller.answer_when(table_of_all.when_made)
    for (topic, number), _ in islice(tuple(table_of_all.dormant), AWAKE):
        table_of_all.get(topic, number)
    return table_of_all


def _record(rounds: Rounds, test: str, what: str, seconds: list[float], wall: float) -> None:
    rounds.record(
        test,
        what,
        longest_turn_ms=max(seconds) * 1000,
        CPU_ms=sum(seconds) * 1000,
        turns=len(seconds),
        wall_ms=wall * 1000,
    )


def _check(image: ClusterImage) -> None:
    assert image.brokers[FENCED].fenced, "the broker must be fenced"
    assert FENCED not in image.leader_counts, "a fenced broker leads nothing"


def _check_partitions(image: ClusterImage, partitions: PartitionTable) -> None:
    """Check that every partition here is in the state of the image."""
    for name, dormant in partitions.dormant:
        assert dormant.state == image.partition(*name), name
    for partition in partitions:
        assert partition.state == image.partition(*partition.topic_partition), partition.topic_partition
