"""Replicas of the cluster's metadata, each on a node with settings of its own, after seeded commands.

Each replica derives for itself the changes that follow when a broker comes or goes. These changes must be the same
everywhere: they follow from the image alone, whatever a node's environment says.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from simulation.harness.breach import Breach
from simulation.harness.world import World
from tailrace.metadata import broker_commands as brokers
from tailrace.metadata import commands
from tailrace.metadata.commands import AlterPartition, InSyncChange, InSyncReplica
from tailrace.metadata.image import ALL_BROKERS, EMPTY_IMAGE, ClusterImage
from tailrace.metadata.records.brokers import BrokerEvent
from tailrace.metadata.records.kinds import MetadataRecord, decode_record, encode_record
from tailrace.metadata.replay import apply, apply_all
from tailrace.metadata.snapshot_image import records_of
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from testkit.quorum.controller_commands import alter_configs, create_topics
from testkit.quorum.controllers import controller_machine
from testkit.quorum.metadata_records import derived_changes

BROKERS = tuple(BrokerId(number) for number in (1, 2, 3, 4))
NODES = 3
COMMANDS = 60


class MetadataRun:
    """A controller and a few replicas that follow its log, record by record."""

    def __init__(self, seed: int) -> None:
        self._world = World(seed)
        self._machine = controller_machine()
        self._images = [EMPTY_IMAGE] * NODES
        self._log: list[bytes] = []

    def run(self) -> None:
        """Raises Breach if a law does not hold."""
        self._decide(brokers.FinalizeMetadataVersion())
        self._decide(self._min_in_sync(2))
        for broker_id in BROKERS:
            self._register(broker_id)
        for number in range(COMMANDS):
            self._act(number)
        self._check_replay()

    # Commands

    def _act(self, number: int) -> None:
        choose = self._world.choice
        kind = choose(("create", "fence", "fence", "unfence", "unfence", "join", "settings", "return"), "kind", number)
        broker_id = choose(BROKERS, "broker", number)
        broker = self._machine.image.brokers.get(broker_id)
        epoch = -1 if broker is None else broker.broker_epoch
        match kind:
            case "create":
                new = commands.TopicSpec(name=f"topic-{number}", num_partitions=3, replication_factor=3)
                self._decide(create_topics(new))
            case "fence":
                self._decide(brokers.FenceBroker(broker_id=broker_id, broker_epoch=epoch))
            case "unfence":
                self._decide(brokers.UnfenceBroker(broker_id=broker_id, broker_epoch=epoch))
            case "join":
                self._join(broker_id, epoch)
            case "settings":
                self._decide(self._min_in_sync(choose((1, 2, 3), "least", number)))
            case _:
                self._register(broker_id)

    def _register(self, broker_id: BrokerId) -> None:
        incarnation = (len(self._log) + 1).to_bytes(16, "big")
        self._decide(brokers.RegisterBroker(broker_id=broker_id, incarnation_id=incarnation, endpoints=()))
        broker = self._machine.image.brokers.get(broker_id)
        if broker is not None:
            self._decide(brokers.UnfenceBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch))

    def _min_in_sync(self, least: int) -> commands.AlterConfigs:
        change = commands.ConfigChange(name="min.insync.replicas", value=str(least))
        return alter_configs(commands.ResourceChanges(resource=ALL_BROKERS, changes=(change,)))

    def _join(self, leader: BrokerId, epoch: int) -> None:
        """Let every replica of the partitions that this broker leads have caught up."""
        changes = tuple(
            InSyncChange(
                topic_id=topic_id,
                partition=number,
                leader_epoch=state.leader_epoch,
                partition_epoch=state.partition_epoch,
                in_sync_replicas=tuple(InSyncReplica(broker_id=replica) for replica in state.replicas),
            )
            for topic_id, number, state in self._machine.image.partitions()
            if state.leader == leader
        )
        self._decide(AlterPartition(broker_id=leader, broker_epoch=epoch, changes=changes))

    def _decide(self, command: commands.ControllerCommand) -> None:
        before = self._machine.image
        try:
            decision = self._machine.decide(command, 0, next_offset=len(self._log))
        except KafkaError:
            return
        for record in decision.records:
            value = encode_record(record)
            self._log.append(value)
            self._replicate(decode_record(value))
        self._machine.adopt(self._images[0])
        self._check(before, self._machine.image)

    # Laws

    def _replicate(self, record: MetadataRecord) -> None:
        if isinstance(record, BrokerEvent):
            derived = []
            for node, image in enumerate(self._images):
                with _settings_of(node):
                    derived.append(derived_changes(image, record))
            if any(changes != derived[0] for changes in derived):
                raise Breach("all replicas derive the same", f"{record}: {derived}")
        for node, image in enumerate(self._images):
            with _settings_of(node):
                self._images[node] = apply(image, record)

    def _check(self, before: ClusterImage, after: ClusterImage) -> None:
        earlier = {(topic_id, number): state for topic_id, number, state in before.partitions()}
        for topic_id, number, state in after.partitions():
            leader = after.brokers.get(state.leader)
            if leader is not None and leader.fenced:
                raise Breach("a fenced broker leads nothing", f"{state.leader} leads {topic_id!r}, {number}")
            old = earlier.get((topic_id, number))
            if old is not None and old.leader != state.leader and state.leader_epoch <= old.leader_epoch:
                raise Breach("a new leader has a new epoch", f"{topic_id!r}, {number}: {old}, {state}")
        if any(image != after for image in self._images):
            raise Breach("all replicas have the same image", f"after {len(self._log)} records")

    def _check_replay(self) -> None:
        image = self._machine.image
        if apply_all(EMPTY_IMAGE, [decode_record(value) for value in self._log])[0] != image:
            raise Breach("an image is the replay of its log", f"{len(self._log)} records")
        snapshot = [encode_record(record) for record in records_of(image)]
        if apply_all(EMPTY_IMAGE, [decode_record(value) for value in snapshot])[0] != image:
            raise Breach("a snapshot holds the whole image", f"{len(snapshot)} records")


@contextmanager
def _settings_of(node: int) -> Iterator[None]:
    """The settings of this node's environment, which contradict settings that the cluster has agreed on."""
    name = "TAILRACE_MIN_INSYNC_REPLICAS"
    outer = os.environ.get(name)
    os.environ[name] = str(node + 1)
    try:
        yield
    finally:
        del os.environ[name]
        if outer is not None:
            os.environ[name] = outer


def run_seed(seed: int) -> None:
    """A whole run. Raises Breach."""
    MetadataRun(seed).run()
