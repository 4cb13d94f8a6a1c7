"""InitProducerId (22): v2 flexible; v3 the producer may name the identity it had (KIP-360); v4 error 90.

A producer without a transactional id always gets a fresh producer id, as in Kafka. The identity of a producer with a
transactional id is decided by the coordinator.
"""

from collections import deque
from collections.abc import Callable

from tailrace.coordinators.transactions.commands import AbortedFirst, InitializeProducer, ProducerIdentity, Response
from tailrace.metadata.broker_commands import (
    AllocateProducerIds,
    ProducerIdBlock,
)
from tailrace.metadata.commands import (
    ControllerResponse,
)
from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_PRODUCER_ID, BrokerId, ProducerId
from tailrace.model.sinks import is_reserved_for_sinks
from tailrace.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from tailrace.server.context import RequestContext
from tailrace.server.ports import Controller
from tailrace.server.transactions.host import OnProducerId, TransactionCoordinatorService
from tailrace.server.transactions.producer_requests import as_version_says
from tailrace.server.transactions.sinks import check_sinks_are_known

_NO_EPOCH = -1
_FIRST_WITH_FENCED = 4
_REFILL_BELOW = 0.1
"""The remaining share of a block at which the next block is fetched, so that no producer waits for a block."""


class ProducerIdPool:
    """Producer ids from the blocks that this run of the broker has got. A restart drops the rest of a block."""

    def __init__(self, *, controller: Controller, broker_id: BrokerId) -> None:
        self._controller = controller
        self._broker_id = broker_id
        self._ids = iter(range(0))
        self._left = 0
        self._block_size = 0
        self._next_block: ProducerIdBlock | None = None
        self._is_fetching = False
        self._waiting: deque[OnProducerId] = deque()

    def allocate(self, on_id: OnProducerId) -> None:
        """Call `on_id` with a new id, at once if an id is left."""
        self._waiting.append(on_id)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and (self._left or self._next_block is not None):
            if not self._left:
                self._open_next_block()
            self._left -= 1
            self._waiting.popleft()(ProducerId(next(self._ids)))
        if self._next_block is None and self._left <= self._block_size * _REFILL_BELOW:
            self._fetch()

    def _open_next_block(self) -> None:
        block, self._next_block = self._next_block, None
        assert block is not None
        self._ids = iter(range(block.first, block.first + block.size))
        self._left = self._block_size = block.size

    def _fetch(self) -> None:
        if self._is_fetching:
            return
        broker = self._controller.image.brokers.get(self._broker_id)
        if broker is None:
            self._refuse(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "this broker is not registered yet"))
            return
        self._is_fetching = True
        command = AllocateProducerIds(broker_id=self._broker_id, broker_epoch=broker.broker_epoch)
        self._controller.submit(command, self._fetched)

    def _fetched(self, outcome: ControllerResponse | KafkaError) -> None:
        self._is_fetching = False
        if isinstance(outcome, KafkaError):
            # A producer can retry after this error, but not after some errors of the controller.
            self._refuse(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"no producer ids: {outcome}"))
            return
        assert isinstance(outcome, ProducerIdBlock)
        self._next_block = outcome
        self._serve()

    def _refuse(self, error: KafkaError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for on_id in waiting:
            on_id(error)


class InitProducerIdHandler:
    """Gives idempotent and transactional producers their identity."""

    def __init__(
        self,
        *,
        producer_ids: ProducerIdPool,
        coordinators: TransactionCoordinatorService,
        image: Callable[[], ClusterImage],
    ) -> None:
        """`image` returns the present image: members of sinks are accepted only when all brokers know sinks."""
        self._producer_ids = producer_ids
        self._coordinators = coordinators
        self._image = image

    def handle(self, request: InitProducerIdRequest, context: RequestContext) -> None:
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == _NO_EPOCH):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer names both its id and its epoch, or neither")
        if request.transactional_id is None:
            self._give_fresh_id(request, context)
        else:
            self._initialize(request.transactional_id, request, context)

    def _give_fresh_id(self, request: InitProducerIdRequest, context: RequestContext) -> None:
        def response(producer_id: ProducerId) -> InitProducerIdResponse:
            return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

        self._producer_ids.allocate(context.answering(request, response))

    def _initialize(self, transactional_id: str, request: InitProducerIdRequest, context: RequestContext) -> None:
        if is_reserved_for_sinks(transactional_id):
            check_sinks_are_known(self._image())
        host = self._coordinators.host_of(transactional_id, check_limit=True)
        command = InitializeProducer(
            transactional_id=transactional_id,
            timeout_ms=request.transaction_timeout_ms,
            expected_producer_id=request.producer_id,
            expected_producer_epoch=request.producer_epoch,
        )

        def response(identity: Response) -> InitProducerIdResponse:
            assert isinstance(identity, ProducerIdentity)
            return InitProducerIdResponse(producer_id=identity.producer_id, producer_epoch=identity.producer_epoch)

        answer = context.answering(request, response)

        def decided(outcome: Response | KafkaError) -> None:
            if isinstance(outcome, AbortedFirst):
                outcome = KafkaError(
                    ErrorCode.CONCURRENT_TRANSACTIONS, f"the open transaction of {transactional_id!r} is aborted first"
                )
            answer(as_version_says(outcome, context.api_version, first_with_fenced=_FIRST_WITH_FENCED))

        host.submit(command, decided)
