"""The transaction coordinators of this node: one for each partition of `__transaction_state` that it leads."""

from collections.abc import Callable

from tailrace.coordinators.transactions.config import TransactionConfig
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TRANSACTION_STATE_TOPIC
from tailrace.replication.partition import Partition
from tailrace.server.coordination.service import CoordinatorService
from tailrace.server.ports import Clock
from tailrace.server.transactions.host import MarkerWriter, TakeProducerId, TransactionCoordinatorHost
from tailrace.server.transactions.next_transactions import WaitingRoom


class TransactionCoordinatorService(CoordinatorService[str, TransactionCoordinatorHost]):
    """The coordinators by transactional id."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        find_partition: Callable[[str, int], Partition | None],
        config: TransactionConfig,
        take_producer_id: TakeProducerId,
        marker_writer: MarkerWriter,
        clock: Clock,
    ) -> None:
        super().__init__(
            TRANSACTION_STATE_TOPIC,
            noun="transactional id",
            key_text=str,
            invalid_key=ErrorCode.INVALID_REQUEST,
            max_keys=config.transaction_max_ids,
            limit="transaction.max.ids",
            broker_id=broker_id,
            find_partition=find_partition,
            clock=clock,
        )
        self._config = config
        self._take_producer_id = take_producer_id
        self._marker_writer = marker_writer
        self._room = WaitingRoom()

    def _host(self, partition: Partition) -> TransactionCoordinatorHost:
        return TransactionCoordinatorHost(
            partition,
            config=self._config,
            take_producer_id=self._take_producer_id,
            marker_writer=self._marker_writer,
            clock=self._clock,
            deadlines=self._deadlines,
            room=self._room,
        )
