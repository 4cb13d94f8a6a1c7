"""The admin path of one node, from frame to metadata log and partitions, without sockets, threads and a real clock.

node = AdminPath("/data", files=SimulatedDisk(seed=1))
node.send(CreateTopicsRequest(...), 7).response
"""

from collections.abc import Mapping
from itertools import count

from tailrace.metadata.broker_commands import BrokerRegistered, RegisterBroker, UnfenceBroker
from tailrace.metadata.commands import ControllerCommand, ControllerResponse, TopicSpec
from tailrace.metadata.image import Endpoint, ResourceType
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.proofs import id_of_secret
from tailrace.node.settings.broker_config import authorizer, controller_machine
from tailrace.protocol.messages.configs import (
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from tailrace.raft.voters import ReplicaKey
from tailrace.server.assembly.broker import Broker
from tailrace.server.assembly.controller import ControllerApis
from tailrace.server.controller_link.channel import ControllerLink
from tailrace.server.ports import Disk
from tailrace.server.replicas.metadata_applier import MetadataApplier
from tailrace.storage import FileSystem
from tailrace.testing.clock import ManualClock
from testkit.nodes.data_path import BROKER, CLUSTER_ID, DataPath, raise_broken_invariant, records_of
from testkit.nodes.lone_quorum import LoneQuorum
from testkit.nodes.ports import NoPeer
from testkit.quorum.controller_commands import create_topics

DIRECTORY_ID = b"a-directory-id-0"
ENDPOINT = Endpoint(listener_name="PLAINTEXT", host="127.0.0.1", port=9092)


class AdminPath(DataPath):
    """A node that is its own controller. With immediate flushes the node is ready when the constructor returns."""

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
        """Take the arguments of `DataPath`."""
        super().__init__(directory, files=files, clock=clock, disk=disk, settings=settings, start=start)
        self.is_ready = False
        self.quorum.start(self._register)
        self.end_turn()

    def _assemble(self, directory: str) -> Broker:
        numbers = count(16, 16)  # no topic gets an id that a view of another has had
        self.machine = controller_machine(
            self.config,
            founding_settings={},
            random_bytes=lambda size: ((1 << 120) + (self._start << 64) + next(numbers)).to_bytes(16, "big")[-size:],
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
        self.apis = ControllerApis(
            cluster_id=CLUSTER_ID,
            deletion_enabled=self.config.flag("delete.topic.enable"),
            settings=self.config,
            clock=self.clock,
            host=self.quorum.host,
            controller=self.controller,
            creating=self.controller,
            on_broken_invariant=raise_broken_invariant,
            authorizer=authorizer(self.config, self.controller),
        )
        self.link = ControllerLink(
            self.controller,
            node_id=BROKER,
            cluster_id=CLUSTER_ID,
            sender_id=self._start.to_bytes(16, "big"),
            secret=self.secret,
            peer=NoPeer(self.clock.call_soon),
            clock=self.clock,
        )
        return self._new_broker(
            directory,
            metadata=self.controller,
            controller=self.link.channel,
            admin=self.link.forwarding.handlers(self.apis.admin),
            authorizer=authorizer(self.config, self.controller),
        )

    @property
    def applier(self) -> MetadataApplier:
        return self.broker.replicas.applier

    def submit(self, command: ControllerCommand) -> list[ControllerResponse | KafkaError]:
        """Give the controller a command; the answer is in the list when the controller has answered."""
        answers: list[ControllerResponse | KafkaError] = []
        self.controller.submit(command, answers.append)
        return answers

    def create_topics(self, *names: str, partitions: int = 1) -> list[ControllerResponse | KafkaError]:
        """Have the controller create these topics, and end the turn."""
        topics = tuple(TopicSpec(name=name, num_partitions=partitions) for name in names)
        answers = self.submit(create_topics(*topics))
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
        self.broker.coordination.close()
        self.end_turn()
        self.controller.close()
        self.table.close()

    def _endpoint(self) -> Endpoint:
        return ENDPOINT

    @property
    def secret(self) -> bytes:
        """The secret of the broker's incarnation."""
        return self._start.to_bytes(16, "big")

    def _register(self) -> None:
        command = RegisterBroker(
            broker_id=BROKER,
            incarnation_id=id_of_secret(self.secret),
            secret=self.secret,
            endpoints=(self._endpoint(),),
            rack=self.config.rack,
        )
        self.controller.submit(command, self._unfence)

    def _unfence(self, registered: ControllerResponse | KafkaError) -> None:
        assert isinstance(registered, BrokerRegistered), registered
        command = UnfenceBroker(broker_id=BrokerId(BROKER), broker_epoch=registered.broker_epoch, secret=self.secret)
        self.controller.submit(command, self._serve)

    def _serve(self, unfenced: ControllerResponse | KafkaError) -> None:
        assert isinstance(unfenced, BrokerRegistered), unfenced
        image, coordination = self.controller.image, self.broker.coordination
        self.applier.load(image)
        coordination.load(image)
        self.broker.take_quotas(image)
        for listener in (self.applier.on_image, *coordination.listeners, self.broker.take_quotas):
            self.controller.on_image(listener)
        self.controller.answer_when(self.table.when_made)
        self.is_ready = True


def describe(
    node: AdminPath,
    name: str,
    *,
    kind: int = ResourceType.TOPIC,
    keys: tuple[str, ...] | None = None,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsResult:
    """Send DescribeConfigs for one resource."""
    request = DescribeConfigsRequest(
        resources=(DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys),),
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    response = node.send(request, version).response
    assert isinstance(response, DescribeConfigsResponse)
    (result,) = response.results
    return result


def entry(result: DescribeConfigsResult, name: str) -> DescribeConfigsResourceResult:
    """The setting of this name."""
    return next(config for config in result.configs if config.name == name)


def alter(
    node: AdminPath,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    version: int = 1,
    validate_only: bool = False,
) -> AlterConfigsResourceResponse:
    """Send IncrementalAlterConfigs for one resource; changes are (setting, operation, value)."""
    configs = tuple(
        IncrementallyAlterableConfig(name=setting, config_operation=operation, value=value)
        for setting, operation, value in changes
    )
    resource = IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    (answer,) = node.send(request, version).response.responses
    assert isinstance(answer, AlterConfigsResourceResponse)
    return answer
