"""The transactions of one node: coordinators, what they send to other brokers, and the handlers of requests."""

from collections.abc import Callable, Mapping
from functools import partial

from tailrace.coordinators.groups.config import GroupConfig
from tailrace.coordinators.transactions.config import TransactionConfig
from tailrace.metadata.image import ClusterImage
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages import producers, transactions
from tailrace.protocol.registry import api_of
from tailrace.server.dispatch import Handler
from tailrace.server.groups.service import GroupCoordinatorService
from tailrace.server.groups.transactional_offsets import TxnOffsetCommitHandler
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock, Controller, Peer
from tailrace.server.transactions.channel import TransactionChannel
from tailrace.server.transactions.marker_sender import MarkerSender
from tailrace.server.transactions.markers import OnWritten, TransactionMarker, write_markers
from tailrace.server.transactions.producer_ids import InitProducerIdHandler, ProducerIdPool
from tailrace.server.transactions.producer_requests import (
    AddOffsetsToTxnHandler,
    AddPartitionsToTxnHandler,
    EndTxnHandler,
)
from tailrace.server.transactions.queries import DescribeTransactionsHandler, ListTransactionsHandler
from tailrace.server.transactions.service import TransactionCoordinatorService


class Transactions:
    """Everything about transactions that is neither in a log nor in a group."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        image: Callable[[], ClusterImage],
        controller: Controller,
        partitions: PartitionTable,
        groups: GroupCoordinatorService,
        config: TransactionConfig,
        is_verified: bool,
        peer: Peer,
        clock: Clock,
    ) -> None:
        """`image` gives the one of now, `peer` are the other brokers, `is_verified` is
        transaction.partition.verification.enable."""
        self.config = config
        self.is_verified = is_verified
        self._controller = controller
        self._groups = groups
        self._clock = clock
        self._producer_ids = ProducerIdPool(controller=controller, broker_id=broker_id)
        sender = MarkerSender(
            broker_id=broker_id,
            image=image,
            write_here=partial(_write_here, partitions, groups, clock),
            peer=peer,
            clock=clock,
        )
        self.coordinators = TransactionCoordinatorService(
            broker_id=broker_id,
            find_partition=partitions.find,
            config=config,
            take_producer_id=self._producer_ids.take,
            marker_writer=sender,
            clock=clock,
        )
        self.verifier = TransactionChannel(
            broker_id=broker_id, image=image, coordinators=self.coordinators, peer=peer, clock=clock
        )

    def handlers(self, groups: GroupConfig) -> Mapping[int, Handler]:
        """By API key."""
        coordinators, controller = self.coordinators, self._controller
        by_request: Mapping[type[object], Handler] = {
            producers.InitProducerIdRequest: InitProducerIdHandler(
                producer_ids=self._producer_ids, transactions=coordinators
            ),
            transactions.AddPartitionsToTxnRequest: AddPartitionsToTxnHandler(
                coordinators=coordinators, controller=controller
            ),
            transactions.AddOffsetsToTxnRequest: AddOffsetsToTxnHandler(
                coordinators=coordinators, controller=controller, groups=groups
            ),
            transactions.EndTxnRequest: EndTxnHandler(coordinators=coordinators),
            transactions.TxnOffsetCommitRequest: TxnOffsetCommitHandler(
                coordinators=self._groups,
                controller=controller,
                verifier=self.verifier,
                is_verified=self.is_verified,
            ),
            transactions.DescribeTransactionsRequest: DescribeTransactionsHandler(coordinators=coordinators),
            transactions.ListTransactionsRequest: ListTransactionsHandler(coordinators=coordinators, clock=self._clock),
        }
        return {api_of(request).key: handler for request, handler in by_request.items()}


def _write_here(
    partitions: PartitionTable,
    groups: GroupCoordinatorService,
    clock: Clock,
    markers: tuple[TransactionMarker, ...],
    on_done: OnWritten,
) -> None:
    write_markers(partitions, markers, on_done, now_ms=clock.now_ms(), pending_offsets=groups)
