"""The admin path of one node, from frame to metadata log and partitions, without sockets, threads and a real clock.

node = AdminPath("/data", files=SimulatedDisk(seed=1))
node.send(CreateTopicsRequest(...), 7).response
"""

from collections.abc import Mapping
from itertools import count

from tailrace.metadata.broker_commands import (
    BrokerRegistered,
    RegisterBroker,
    UnfenceBroker,
)
from tailrace.metadata.commands import (
    ControllerCommand,
    ControllerResponse,
    CreateTopics,
    TopicSpec,
)
from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.deciding.topics import TopicRules
from tailrace.metadata.image import Endpoint
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.node.settings.config import NodeConfig
from tailrace.node.settings.table import BROKER_SETTINGS
from tailrace.raft.voters import ReplicaKey
from tailrace.server.admin.brokers import UnregisterBrokerHandler
from tailrace.server.admin.config_changes import AlterConfigsHandler, OwnBrokerConfigs
from tailrace.server.admin.config_resources import ListConfigResourcesHandler
from tailrace.server.admin.configs import DescribeConfigsHandler
from tailrace.server.admin.delete_records import DeleteRecordsHandler
from tailrace.server.admin.features import UpdateFeaturesHandler
from tailrace.server.admin.live_settings import LiveSettings
from tailrace.server.admin.log_dir_moves import AlterReplicaLogDirsHandler
from tailrace.server.admin.log_dirs import DescribeLogDirsHandler
from tailrace.server.admin.replicas import (
    AlterPartitionReassignmentsHandler,
    ElectLeadersHandler,
    ListPartitionReassignmentsHandler,
)
from tailrace.server.admin.topics import CreatePartitionsHandler, CreateTopicsHandler, DeleteTopicsHandler
from tailrace.server.api_versions import FinalizedFeatures
from tailrace.server.dispatch import Dispatcher, Handler
from tailrace.server.fetch.fetch import FetchHandler
from tailrace.server.metadata.cluster import DescribeClusterHandler
from tailrace.server.metadata.metadata import MetadataHandler
from tailrace.server.metadata.reachable_brokers import LeaderEndpoints
from tailrace.server.metadata.topic_partitions import DescribeTopicPartitionsHandler
from tailrace.server.ports import Disk
from tailrace.server.produce.produce import ProduceHandler
from tailrace.server.produce.producers import DescribeProducersHandler
from tailrace.server.quorum.description import QuorumDescriptionHandler
from tailrace.server.replicas.metadata_applier import ImageLeaders, MetadataApplier
from tailrace.storage import FileSystem
from tailrace.testing.clock import ManualClock
from testkit.data_path import BROKER, FETCH, PRODUCE, DataPath, records_of
from testkit.lone_quorum import LoneQuorum

CLUSTER_ID = "a-cluster-for-tests-00"
DIRECTORY_ID = b"a-directory-id-0"
ENDPOINT = Endpoint(listener_name="PLAINTEXT", host="127.0.0.1", port=9092)


class AdminPath(DataPath):
    """A node that is its own controller. With immediate flushes it is ready when the constructor returns."""

    def __init__(
        self,
        directory: str,
        *,
        files: FileSystem | None = None,
        clock: ManualClock | None = None,
        disk: Disk | None = None,
        settings: Mapping[str, str] | None = None,
        start: int = 1,
    ) -> None:
        """`start` tells one start of the process from the next: it makes the ids that are random otherwise."""
        super().__init__(directory, files=files, clock=clock, disk=disk)
        self.config = NodeConfig(settings)
        self._start = start
        numbers = count(1)
        self.machine = ControllerMachine(
            random_bytes=lambda size: ((1 << 120) + (start << 64) + next(numbers)).to_bytes(16, "big")[-size:],
            topic_rules=TopicRules(
                num_partitions=self.config.integer("num.partitions"),
                replication_factor=self.config.integer("default.replication.factor"),
                config=self.config.topic_defaults,
                max_partitions_per_topic=self.config.integer("max.partitions.per.topic"),
                max_partitions_per_broker=self.config.integer("max.partitions.per.node"),
            ),
            broker_settings=BROKER_SETTINGS,
        )
        self.quorum = LoneQuorum(
            directory,
            self.machine,
            files=self.files,
            clock=self.clock,
            disk=self.disk,
            key=ReplicaKey(BROKER, DIRECTORY_ID),
            cluster_id=CLUSTER_ID,
        )
        self.log = self.quorum.log
        self.controller = self.quorum.controller
        self.table.leaders = ImageLeaders(self.controller)
        self.applier = MetadataApplier(partitions=self.table, broker_id=BROKER, settings=LiveSettings(self.config))
        self.dispatcher = Dispatcher(
            self._handlers(),
            write_staged=self.table.write_staged,
            on_broken_invariant=_raise_broken_invariant,
            finalized=lambda: FinalizedFeatures(self.controller.image.features, self.controller.applied_end_offset - 1),
        )
        self.clock.on_turn_end = self.dispatcher.on_turn_end
        self.is_ready = False
        self.quorum.start(self._register)
        self.end_turn()

    def submit(self, command: ControllerCommand) -> list[ControllerResponse | KafkaError]:
        """Give the controller a command; the answer is in the list once there is one."""
        answers: list[ControllerResponse | KafkaError] = []
        self.controller.submit(command, answers.append)
        return answers

    def create_topics(self, *names: str, partitions: int = 1) -> list[ControllerResponse | KafkaError]:
        """Have the controller create these topics, and end the turn."""
        topics = tuple(TopicSpec(name=name, num_partitions=partitions) for name in names)
        answers = self.submit(CreateTopics(topics=topics))
        self.end_turn()
        return answers

    def topic_id(self, name: str) -> TopicId:
        """The id of a topic that exists."""
        return self.controller.image.topics[name].topic_id

    def records_of(self, topic: str) -> list[bytes | None]:
        """The values that a consumer of the first partition gets at once; the topic's id need not be known."""
        return [record.value for record in records_of(self.fetch(topic, 0, version=11).fetched.records)]

    def leader_epoch(self, topic: str, partition: int = 0) -> LeaderEpoch:
        """The committed leader epoch of a partition that exists."""
        state = self.controller.image.partition(topic, partition)
        assert state is not None
        return state.leader_epoch

    def stop(self) -> None:
        """Stop cleanly."""
        self.end_turn()
        self.controller.close()
        self.table.close()

    def _endpoint(self) -> Endpoint:
        return ENDPOINT

    def _register(self) -> None:
        command = RegisterBroker(
            broker_id=BROKER,
            incarnation_id=self._start.to_bytes(16, "big"),
            endpoints=(self._endpoint(),),
            rack=self.config.rack,
        )
        self.controller.submit(command, self._unfence)

    def _unfence(self, registered: ControllerResponse | KafkaError) -> None:
        assert isinstance(registered, BrokerRegistered), registered
        command = UnfenceBroker(broker_id=BrokerId(BROKER), broker_epoch=registered.broker_epoch)
        self.controller.submit(command, self._serve)

    def _serve(self, unfenced: ControllerResponse | KafkaError) -> None:
        assert isinstance(unfenced, BrokerRegistered), unfenced
        self.applier.load(self.controller.image)
        self.controller.on_image(self.applier.on_image)
        self.controller.answer_when(self.table.when_made)
        self.is_ready = True

    def _handlers(self) -> dict[int, Handler]:
        controller = self.controller
        endpoints = LeaderEndpoints(controller)
        settings = LiveSettings(self.config)
        altering = OwnBrokerConfigs(AlterConfigsHandler(controller=controller), node_id=BROKER)
        return {
            PRODUCE: ProduceHandler(
                partitions=self.table, deadlines=self.deadlines, clock=self.clock, endpoints=endpoints
            ),
            FETCH: FetchHandler(partitions=self.table, polls=self.polls, endpoints=endpoints),
            3: MetadataHandler(
                controller=controller,
                broker_id=BROKER,
                cluster_id=CLUSTER_ID,
                auto_create=self.config.flag("auto.create.topics.enable"),
                offline_replica=self.table.offline_replica,
            ),
            19: CreateTopicsHandler(controller=controller, settings=settings),
            20: DeleteTopicsHandler(controller=controller, deletion_enabled=self.config.flag("delete.topic.enable")),
            21: DeleteRecordsHandler(partitions=self.table, clock=self.clock),
            32: DescribeConfigsHandler(controller=controller, settings=settings),
            33: altering,
            34: AlterReplicaLogDirsHandler(partitions=self.table, path=self.table.directory.path),
            35: DescribeLogDirsHandler(partitions=self.table, path=self.table.directory.path),
            37: CreatePartitionsHandler(controller=controller),
            43: ElectLeadersHandler(controller=controller),
            44: altering,
            45: AlterPartitionReassignmentsHandler(controller=controller),
            46: ListPartitionReassignmentsHandler(controller=controller),
            55: QuorumDescriptionHandler(self.quorum.host, clock=self.clock, controller=controller),
            57: UpdateFeaturesHandler(controller=controller),
            60: DescribeClusterHandler(controller=controller, broker_id=BROKER, cluster_id=CLUSTER_ID),
            61: DescribeProducersHandler(partitions=self.table),
            64: UnregisterBrokerHandler(controller=controller),
            74: ListConfigResourcesHandler(controller=controller),
            75: DescribeTopicPartitionsHandler(controller=controller, offline_replica=self.table.offline_replica),
        }


def _raise_broken_invariant(broken: BaseException) -> None:
    raise broken
