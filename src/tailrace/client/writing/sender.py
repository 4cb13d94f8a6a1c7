"""Sends the accumulator's batches to the leaders, at most five requests per node in flight."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial

from tailrace.client.cluster_view import BrokerAddress
from tailrace.client.errors import check, code_of
from tailrace.client.router import Router
from tailrace.client.transactions.host import TransactionHost
from tailrace.client.transactions.producer_transaction import EPOCH_OF_EACH, Identity
from tailrace.client.writing.accumulator import Accumulator
from tailrace.client.writing.outgoing import OutgoingBatch
from tailrace.client.writing.partition_queue import BatchOutcome, PartitionQueue
from tailrace.model import __version__
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import NEGOTIATED_WITH, Connection
from tailrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tailrace.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

MAX_IN_FLIGHT_PER_NODE = 5
"""max.in.flight.requests.per.connection: more would break the order of an idempotent producer."""

_USE = "produce"
_LAST_WITH_NAMES = 12
"""The last version of Produce that names topics by name; from version 13 on it names topics by id."""
_LAST_WITH_ADDITIONS = 11
"""The last version of Produce before which partitions are added; from version 12 on a Produce adds its partitions to
the transaction (KIP-890)."""
_IDENTITY = "identity"
_ADDITIONS = "partitions of the transaction"
"""The names of jobs; `_describing` and `_connecting` give the names of the other jobs."""
_AGAIN = (BatchOutcome.RETRY, BatchOutcome.BEHIND, BatchOutcome.DOUBT, BatchOutcome.RENEW)
_STALE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
"""The codes of a batch that is larger than the topic allows, or than a segment: nothing of the batch is written."""


class Sender:
    """Runs until `stop`; everything happens on its event loop."""

    def __init__(
        self,
        router: Router,
        accumulator: Accumulator,
        *,
        acks: int,
        idempotent: bool,
        on_release: Callable[[int], None],
        transactions: TransactionHost | None = None,
    ) -> None:
        self._router = router
        self._accumulator = accumulator
        self._acks = acks
        self._idempotent = idempotent
        self._on_release = on_release
        self._transactions = transactions
        self._identity: Identity | None = None
        self._identity_cluster: str | None = None
        """The cluster of the identity."""
        self._in_flight: dict[int, int] = defaultdict(int)
        self._wake = asyncio.Event()
        self._stopping = self._has_collapsed = False
        self._jobs: asyncio.TaskGroup | None = None
        self._running_jobs: set[str] = set()
        self._paused_until_ms: dict[str, int] = {}
        self._last_fault: KafkaError | None = None
        self._troubles: dict[TopicPartition | str, KafkaError] = {}  # by partition, or by the name of a job

    @property
    def trouble(self) -> KafkaError | None:
        """The fault because of which the producer tries again; None without a fault."""
        return next(iter(self._troubles.values()), None)

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    def stop(self) -> None:
        """Let `run` end once all batches are complete."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Send until stopped. Ends early only by cancellation."""
        async with asyncio.TaskGroup() as self._jobs:
            while not self._is_finished:
                self._wake.clear()
                now_ms = self._router.now_ms()
                self._turn(now_ms)
                await self._sleep(now_ms)

    @property
    def _is_finished(self) -> bool:
        return self._stopping and self._accumulator.is_empty and not any(self._in_flight.values())

    async def _sleep(self, now_ms: int) -> None:
        """Sleep until a batch or a pause may be due. `now_ms` is the time of the last turn.

        With a later time, a batch that became due since the turn would count as sent, and the sleep would skip it.
        """
        times = [time for time in self._paused_until_ms.values() if time > now_ms]
        deadline_ms = self._accumulator.next_deadline_ms(now_ms)
        if deadline_ms is not None:
            times.append(deadline_ms)
        if self._is_finished:
            return
        if not times:
            await self._wake.wait()
            return
        loop = asyncio.get_running_loop()
        # One ms later: `now_ms` is rounded down, and a timer that fires early would cause a turn without work.
        timer = loop.call_at((min(times) + 1) / 1000, self._wake.set)
        await self._wake.wait()
        timer.cancel()

    def _turn(self, now_ms: int) -> None:
        """Send all batches that can be sent now."""
        for batch in self._accumulator.expire(now_ms):
            self._finish(batch, self._expired(batch))
        if self._troubles:
            self._forget_troubles()
        if self._transactions is not None and self._transactions.machine.is_doomed:
            self.fail_all(self._transactions.machine.error())
            return
        ready = list(self._accumulator.ready(now_ms))
        if not ready:
            return
        if self._transactions is not None:
            ready = self._admitted(ready, self._transactions)
        elif not self._has_identity():
            return
        by_leader: dict[BrokerAddress, list[PartitionQueue]] = defaultdict(list)
        for queue in ready:
            leader = self._leader(queue)
            if leader is not None:
                by_leader[leader].append(queue)
        for leader, queues in by_leader.items():
            self._send_to(leader, queues, now_ms)

    def _has_identity(self) -> bool:
        """Whether the producer has an identity of this cluster, or needs no identity; if not, the identity is
        requested."""
        if self._identity is not None and self._identity_cluster != self._router.view.cluster_id:
            # Another producer may have this id in the new cluster, and the broker would drop the records as
            # repetitions.
            self._identity = None
            self._accumulator.restart()
        if self._idempotent and self._identity is None:
            self._start(_IDENTITY, self._obtain_identity)
            return False
        return True

    def _admitted(self, queues: list[PartitionQueue], transactions: TransactionHost) -> list[PartitionQueue]:
        """Queues whose partitions are in the transaction; the other partitions are being added."""
        machine, cluster = transactions.machine, self._router.view.cluster_id
        if self._identity is None:
            self._identity_cluster = cluster
        elif self._identity_cluster != cluster:
            detail = "another cluster answers at the address of the cluster that had this producer"
            machine.give_up(KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, detail))
            self.wake()
            return []
        if self._identity != machine.identity:
            self._accumulator.restart()
            self._identity = machine.identity
        admitted = [queue for queue in queues if machine.admits(queue.topic_partition)]
        if machine.has_wanted:
            self._start(_ADDITIONS, transactions.add_partitions)
        return admitted

    def _forget_troubles(self) -> None:
        """Keep only the faults of nodes that lead partitions with unsent records."""
        incomplete = self._accumulator.incomplete
        met: set[TopicPartition | str] = {*incomplete, *(_describing(topic) for topic, _ in incomplete)}
        if incomplete:
            met |= {_IDENTITY, _ADDITIONS}
        for partition in incomplete:
            with suppress(KafkaError):  # it has no leader
                met.add(_connecting(self._router.view.leader(partition)))
        self._troubles = {what: fault for what, fault in self._troubles.items() if what in met}

    def _leader(self, queue: PartitionQueue) -> BrokerAddress | None:
        topic = queue.topic_partition.topic
        if self._router.view.needs_refresh((topic,), self._router.now_ms()):
            self._start(_describing(topic), partial(self._describe, queue.topic_partition))
        try:
            return self._router.view.leader(queue.topic_partition)
        except KafkaError as fault:
            self._last_fault = self._troubles[queue.topic_partition] = fault
            return None

    def _send_to(self, leader: BrokerAddress, queues: list[PartitionQueue], now_ms: int) -> None:
        connecting = _connecting(leader)
        connection = self._router.open_connection(leader, _USE)
        if connection is None:
            self._start(connecting, partial(self._connect, leader))
        if connection is None or connecting in self._running_jobs:
            return
        while queues and self._in_flight[leader.node_id] < MAX_IN_FLIGHT_PER_NODE:
            batches: list[OutgoingBatch] = []
            size_bytes = 0
            for queue in queues:
                batch = queue.take(self._identity)
                batches.append(batch)
                self._accumulator.served(queue)
                size_bytes += len(batch.payload)
                if size_bytes >= self._accumulator.max_request_size:
                    break
            self._send(connection, leader, batches)
            # Queues that did not fit into this request come first in the next request.
            served, left = queues[: len(batches)], queues[len(batches) :]
            linger_ms = self._accumulator.effective_linger_ms
            queues = left + [queue for queue in served if queue.can_send(now_ms, linger_ms)]

    def _send(self, connection: Connection, leader: BrokerAddress, batches: list[OutgoingBatch]) -> None:
        topics: dict[str, list[PartitionProduceData]] = defaultdict(list)
        for batch in batches:
            topic, index = batch.topic_partition
            topics[topic].append(PartitionProduceData(index=index, records=batch.payload))
        transaction = None if self._transactions is None else self._transactions.machine
        is_older = transaction is not None and transaction.version < EPOCH_OF_EACH
        request = ProduceRequest(
            transactional_id=None if transaction is None else transaction.transactional_id,
            acks=self._acks,
            timeout_ms=self._router.request_timeout_ms,
            topic_data=tuple(TopicProduceData(name=name, partition_data=tuple(each)) for name, each in topics.items()),
        )
        try:
            if self._acks == 0:
                self._send_unanswered(connection, leader, request, batches)
                return
            answer = connection.send(
                request,
                ProduceResponse,
                timeout_ms=self._router.request_timeout_ms,
                max_version=_LAST_WITH_ADDITIONS if is_older else _LAST_WITH_NAMES,
            )
        except KafkaError as fault:
            self._settle_all(batches, fault)
            return
        self._in_flight[leader.node_id] += 1
        answer.add_done_callback(partial(self._answered, leader.node_id, batches))

    def _send_unanswered(
        self, connection: Connection, leader: BrokerAddress, request: ProduceRequest, batches: list[OutgoingBatch]
    ) -> None:
        """Send Produce with acks=0, then ApiVersions: the answer confirms that the node has read both requests.

        Without the second request, the bytes in the socket's buffer would have no bound, and `close` would lose them. A
        node that does not lead any more closes the connection: acks=0 has no error response.
        """
        connection.send_unanswered(request, max_version=_LAST_WITH_NAMES)
        question = ApiVersionsRequest(client_software_name="tailrace", client_software_version=__version__)
        timeout_ms = self._router.request_timeout_ms
        answer = connection.send(question, ApiVersionsResponse, timeout_ms=timeout_ms, max_version=NEGOTIATED_WITH)
        self._settle_all(batches, None)
        self._in_flight[leader.node_id] += 1
        answer.add_done_callback(partial(self._was_read, leader.node_id, batches))

    def _was_read(
        self, node_id: int, batches: list[OutgoingBatch], answer: asyncio.Future[ApiVersionsResponse]
    ) -> None:
        self._in_flight[node_id] -= 1
        self._wake.set()
        if not answer.cancelled() and answer.exception() is not None:
            for batch in batches:
                self._router.view.mark_stale(batch.topic_partition.topic)

    def _answered(self, node_id: int, batches: list[OutgoingBatch], answer: asyncio.Future[ProduceResponse]) -> None:
        self._in_flight[node_id] -= 1
        self._wake.set()
        if answer.cancelled():
            return
        fault = answer.exception()
        if self._has_collapsed:
            return
        if fault is not None:
            assert isinstance(fault, KafkaError), "a connection fails requests with KafkaError only"
            self._settle_all(batches, fault)
            return
        answers = {
            (topic.name, partition.index): partition
            for topic in answer.result().responses
            for partition in topic.partition_responses
        }
        for batch in batches:
            found = answers.get((batch.topic_partition.topic, batch.topic_partition.partition))
            if found is None:
                missing = f"the broker's answer does not mention {batch.topic_partition}"
                self._settle(batch, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, missing), None)
            elif found.error_code:
                detail = f"{batch.topic_partition}: {found.error_message}" if found.error_message else ""
                fault = KafkaError(code_of(found.error_code), detail or f"produce to {batch.topic_partition}")
                self._settle(batch, fault, found)
            else:
                self._settle(batch, None, found)

    def _settle_all(self, batches: list[OutgoingBatch], fault: KafkaError | None) -> None:
        for batch in batches:
            self._settle(batch, fault, None)

    def _settle(self, batch: OutgoingBatch, fault: KafkaError | None, answer: PartitionProduceResponse | None) -> None:
        queue = self._accumulator.queue(batch.topic_partition)
        code = ErrorCode.NONE if fault is None else fault.code
        if code in _TOO_LARGE and queue.can_split(batch):
            queue.split(batch)
            return
        verdict = queue.verdict(batch, code)
        if verdict is BatchOutcome.RENEW and self._transactions is not None:
            verdict = BatchOutcome.FAIL  # only the coordinator gives a transaction another identity
        now_ms = self._router.now_ms()
        if fault is not None:
            self._last_fault = fault
            if code in _STALE or code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT):
                self._router.view.mark_stale(batch.topic_partition.topic)
        if verdict in _AGAIN and now_ms >= batch.deadline_ms:
            verdict = BatchOutcome.GIVE_UP
            fault = self._expired(batch)
        if verdict is BatchOutcome.RENEW and self._identity is not None and batch.identity is not None:
            refused_id = batch.identity.producer_id
            self._identity = self._identity if self._identity.producer_id != refused_id else None
        if fault is not None and verdict in _AGAIN:
            self._troubles[batch.topic_partition] = fault
        else:
            self._troubles.pop(batch.topic_partition, None)
        completed = queue.settle(batch, verdict, not_before_ms=now_ms + self._router.retry_backoff_ms)
        if verdict is BatchOutcome.DONE:
            written = answer is not None and answer.error_code == 0
            for each in completed:
                self._finish(each, None, answer if written and each is batch else None)
            return
        for each in completed:
            assert fault is not None, "only a fault fails a batch"
            self._finish(each, _in_doubt(fault) if verdict is BatchOutcome.GIVE_UP else fault)

    def _finish(
        self, batch: OutgoingBatch, fault: KafkaError | None, answer: PartitionProduceResponse | None = None
    ) -> None:
        if fault is not None:
            if self._transactions is not None:
                self._transactions.machine.batch_failed(fault, is_numbered=batch.identity is not None)
            batch.fail(fault)
        elif answer is None:
            batch.succeed(-1, -1)
        else:
            batch.succeed(answer.base_offset, answer.log_append_time_ms)
        self._on_release(batch.cost)

    def _expired(self, batch: OutgoingBatch) -> KafkaError:
        detail = (
            f"{batch.count} records for {batch.topic_partition} were not acknowledged within delivery.timeout.ms "
            f"{self._accumulator.delivery_timeout_ms} ({batch.attempts} attempts)"
        )
        if self._last_fault is not None:
            detail += f"; last error {self._last_fault}"
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail)

    # Jobs: metadata, connections, the producer id

    def _start(self, name: str, job: Callable[[], Coroutine[None, None, object]]) -> None:
        """Run this job unless it runs or pauses after a failure. The end of the job wakes the sender."""
        assert self._jobs is not None, "jobs run inside run()"
        if name in self._running_jobs or self._router.now_ms() < self._paused_until_ms.get(name, 0):
            return
        self._running_jobs.add(name)
        self._jobs.create_task(self._run_job(name, job))

    async def _run_job(self, name: str, job: Callable[[], Coroutine[None, None, object]]) -> None:
        try:
            await job()
            self._paused_until_ms.pop(name, None)
            self._troubles.pop(name, None)
        except KafkaError as fault:
            self._last_fault = self._troubles[name] = fault
            self._paused_until_ms[name] = self._router.now_ms() + self._router.retry_backoff_ms
            if name == _IDENTITY and not fault.code.retriable and fault.code != ErrorCode.BROKER_NOT_AVAILABLE:
                self.fail_all(fault)
        finally:
            self._running_jobs.discard(name)
            self._wake.set()

    async def _describe(self, topic_partition: TopicPartition) -> None:
        """Refresh the topic. Raises KafkaError, for a pause before the next request, while a leader is missing."""
        router, topic = self._router, topic_partition.topic
        await router.ensure_fresh((topic,))
        if router.view.needs_refresh((topic,), router.now_ms()):
            router.view.leader(topic_partition)
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {topic!r} has partitions without a leader")

    async def _connect(self, leader: BrokerAddress) -> None:
        try:
            await self._router.broker_connection(leader, _USE)
            if self._identity is not None:
                await self._router.refresh(())  # after a lost connection: the cluster may be another one
        except KafkaError:
            for topic in self._router.view.topics:
                self._router.view.mark_stale(topic.name)
            raise

    async def _obtain_identity(self) -> None:
        connection = await self._router.any_connection()
        response = await self._router.ask(
            connection,
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0x7FFFFFFF),
            InitProducerIdResponse,
        )
        check(response.error_code, f"{connection.address} gave no producer id")
        self._identity = Identity(response.producer_id, response.producer_epoch)
        self._identity_cluster = self._router.view.cluster_id

    def fail_all(self, fault: KafkaError) -> None:
        """Fail every batch that is not in flight."""
        for batch in self._accumulator.give_up_unsent():
            self._finish(batch, fault)

    def collapse(self, fault: KafkaError) -> None:
        """Fail every future: `run` has ended with an exception, or is about to be cancelled."""
        self._has_collapsed = True
        for batch in self._accumulator.give_up_all():
            self._finish(batch, fault)


def _describing(topic: str) -> str:
    return f"metadata of {topic}"


def _connecting(leader: BrokerAddress) -> str:
    return f"connection to node {leader.node_id}"


def _in_doubt(fault: KafkaError) -> KafkaError:
    return KafkaError(fault.code, f"{fault.detail}; it is not known whether the records are written")
