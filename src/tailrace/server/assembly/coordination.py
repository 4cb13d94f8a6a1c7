"""The coordinators of one broker, and the handlers of groups and transactions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tailrace.metadata.image import ClusterImage, full_delta
from tailrace.metadata.views import Views
from tailrace.model.partitions import INTERNAL_TOPICS, TopicPartition
from tailrace.protocol.messages import consumer_groups, groups, membership, offsets, sinks, transactions
from tailrace.server.assembly.config import BrokerConfig, BrokerPorts
from tailrace.server.authorizer import Authorizer
from tailrace.server.coordination.checkpoint_keeper import CheckpointKeeper
from tailrace.server.coordination.find_coordinator import FindCoordinatorHandler
from tailrace.server.dispatch import HandlerTable, by_api
from tailrace.server.groups.commits import OffsetCommitHandler
from tailrace.server.groups.consumer_groups import ConsumerGroupDescribeHandler, ConsumerGroupHeartbeatHandler
from tailrace.server.groups.groups import DeleteGroupsHandler, DescribeGroupsHandler, ListGroupsHandler
from tailrace.server.groups.host import GroupCoordinatorService
from tailrace.server.groups.membership import HeartbeatHandler, JoinGroupHandler, LeaveGroupHandler, SyncGroupHandler
from tailrace.server.groups.offsets import OffsetDeleteHandler, OffsetFetchHandler
from tailrace.server.groups.partition_ends import PartitionEnds
from tailrace.server.groups.transactional_offsets import TxnOffsetCommitHandler
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Controller
from tailrace.server.quorum.controller import OnImage
from tailrace.server.transactions.channel import TransactionChannel
from tailrace.server.transactions.host import TransactionCoordinatorService
from tailrace.server.transactions.marker_sender import MarkerSender
from tailrace.server.transactions.markers import OnWritten, TransactionMarker, WriteTxnMarkersHandler, write_markers
from tailrace.server.transactions.producer_ids import InitProducerIdHandler, ProducerIdPool
from tailrace.server.transactions.producer_requests import (
    AddOffsetsToTxnHandler,
    AddPartitionsToTxnHandler,
    EndTxnHandler,
)
from tailrace.server.transactions.queries import DescribeTransactionsHandler, ListTransactionsHandler
from tailrace.server.transactions.sinks import CommitSinkHandler, DescribeSinksHandler, RenewSinkRunHandler
from tailrace.server.waiters import Deadlines


class Coordination:
    """The coordinators of groups and of transactions on this broker."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        ports: BrokerPorts,
        controller: Controller,
        partitions: PartitionTable,
        views: Views,
        authorizer: Authorizer,
    ) -> None:
        broker_id, clock = config.broker_id, ports.clock
        self._clock = clock
        self._partitions = partitions
        self._controller = controller
        self._verifies_transactions = config.verifies_transactions
        self._group_config = replace(config.groups, settings_of=self._settings_of_group)
        self._transaction_config = config.transactions
        self.groups: Final = GroupCoordinatorService(
            broker_id=broker_id,
            find_partition=partitions.find,
            config=self._group_config,
            new_member_id=lambda prefix: f"{prefix}-{_uuid(ports.random_bytes)}",
            clock=clock,
            views=views,
            authorizer=authorizer,
        )
        self._partition_ends = PartitionEnds(
            find_partition=partitions.find,
            image=self._image,
            peer=ports.peers,
            timeout_ms=config.groups.offsets_commit_timeout_ms,
        )
        self._allows_key_ranges = config.key_ranges.group_key_ranges_enable
        self.producer_ids: Final = ProducerIdPool(controller=controller, broker_id=broker_id)
        self.marker_sender: Final = MarkerSender(
            broker_id=broker_id,
            image=self._image,
            write_here=self._write_markers_here,
            peer=ports.peers,
            clock=clock,
        )
        self.transactions: Final = TransactionCoordinatorService(
            broker_id=broker_id,
            find_partition=partitions.find,
            config=config.transactions,
            allocate_producer_id=self.producer_ids.allocate,
            marker_writer=self.marker_sender,
            clock=clock,
        )
        self.checkpoints: Final = CheckpointKeeper(
            partitions, names=self._coordinated_partitions, disk=ports.syncing_disk, clock=clock
        )
        """Writes the checkpoints by which coordinators on this broker and on other brokers take over fast."""
        self.verifier: Final = TransactionChannel(
            broker_id=broker_id, image=self._image, coordinators=self.transactions, peer=ports.peers, clock=clock
        )

    def _image(self) -> ClusterImage:
        return self._controller.image

    def _coordinated_partitions(self) -> Iterator[TopicPartition]:
        for name in INTERNAL_TOPICS:
            topic = self._image().topics.get(name)
            for number in () if topic is None else topic.partitions:
                yield TopicPartition(name, number)

    def _takes_ranges(self) -> bool:
        return self._allows_key_ranges and self._controller.image.knows_key_ranges

    def _settings_of_group(self, group_id: str) -> Mapping[str, str]:
        return self._controller.image.group_overrides(group_id)

    def _write_markers_here(self, markers: Sequence[TransactionMarker], on_done: OnWritten) -> None:
        write_markers(self._partitions, markers, on_done, now_ms=self._clock.now_ms(), pending_offsets=self.groups)

    def load(self, image: ClusterImage) -> None:
        """Begin to coordinate the partitions that this broker leads in the image."""
        for listener in self.listeners:
            listener(image, full_delta(image))

    @property
    def listeners(self) -> tuple[OnImage, ...]:
        """Receivers of changes of the metadata, which must come after the partitions."""
        return (self.groups.on_image, self.transactions.on_image)

    def close(self) -> None:
        """Answer all waiting requests, and stop coordinating."""
        self.checkpoints.stop()
        self.transactions.close()
        self.groups.close()

    def handlers(self, deadlines: Deadlines) -> HandlerTable:
        """The handlers of all requests to coordinators; `deadlines` ends requests that wait for replicas."""
        return {**self._of_groups(), **self._of_transactions(deadlines)}

    def _of_groups(self) -> HandlerTable:
        controller, service = self._controller, self.groups
        return by_api(
            {
                groups.FindCoordinatorRequest: FindCoordinatorHandler(
                    controller=controller, group_config=self._group_config, transaction_config=self._transaction_config
                ),
                membership.JoinGroupRequest: JoinGroupHandler(coordinators=service),
                membership.SyncGroupRequest: SyncGroupHandler(coordinators=service),
                membership.HeartbeatRequest: HeartbeatHandler(coordinators=service),
                membership.LeaveGroupRequest: LeaveGroupHandler(coordinators=service),
                offsets.OffsetCommitRequest: OffsetCommitHandler(
                    coordinators=service, ends=self._partition_ends, takes_ranges=self._takes_ranges
                ),
                offsets.OffsetFetchRequest: OffsetFetchHandler(coordinators=service),
                offsets.OffsetDeleteRequest: OffsetDeleteHandler(coordinators=service),
                groups.DescribeGroupsRequest: DescribeGroupsHandler(coordinators=service),
                groups.ListGroupsRequest: ListGroupsHandler(coordinators=service),
                groups.DeleteGroupsRequest: DeleteGroupsHandler(coordinators=service),
                consumer_groups.ConsumerGroupHeartbeatRequest: ConsumerGroupHeartbeatHandler(coordinators=service),
                consumer_groups.ConsumerGroupDescribeRequest: ConsumerGroupDescribeHandler(coordinators=service),
            }
        )

    def _of_transactions(self, deadlines: Deadlines) -> HandlerTable:
        controller, service, clock = self._controller, self.transactions, self._clock
        return by_api(
            {
                transactions.InitProducerIdRequest: InitProducerIdHandler(
                    producer_ids=self.producer_ids, coordinators=service, image=self._image
                ),
                transactions.AddPartitionsToTxnRequest: AddPartitionsToTxnHandler(
                    coordinators=service, controller=controller
                ),
                transactions.AddOffsetsToTxnRequest: AddOffsetsToTxnHandler(
                    coordinators=service, controller=controller, group_config=self._group_config
                ),
                transactions.EndTxnRequest: EndTxnHandler(coordinators=service),
                transactions.TxnOffsetCommitRequest: TxnOffsetCommitHandler(
                    coordinators=self.groups, verifier=self.verifier, is_verified=self._verifies_transactions
                ),
                transactions.DescribeTransactionsRequest: DescribeTransactionsHandler(coordinators=service),
                transactions.ListTransactionsRequest: ListTransactionsHandler(coordinators=service, clock=clock),
                transactions.WriteTxnMarkersRequest: WriteTxnMarkersHandler(
                    partitions=self._partitions, clock=clock, deadlines=deadlines, pending_offsets=self.groups
                ),
                sinks.CommitSinkRequest: CommitSinkHandler(coordinators=service, image=self._image),
                sinks.DescribeSinksRequest: DescribeSinksHandler(coordinators=service),
                sinks.RenewSinkRunRequest: RenewSinkRunHandler(coordinators=service),
            }
        )


def _uuid(random_bytes: Callable[[int], bytes]) -> str:
    """A random UUID, of version 4. The module uuid would load a library of the system into every node."""
    digits = random_bytes(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
