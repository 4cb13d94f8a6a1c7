"""aiokafka as a client of the ledger: its event loop turns while one of its calls is waited for."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import aiokafka
from aiokafka.errors import KafkaError

from crash.ledger.client import CALL_S, FROM_NOW, CannotGoOn, LedgerReader, MustAbort, Received
from crash.ledger.plan import ProgramPlan
from testkit.verdicts.ledger import Place

T = TypeVar("T")
_PATIENCE_S = 60.0
Run = Callable[[Coroutine[Any, Any, T]], T]


class AiokafkaReader:
    """An assigned consumer."""

    def __init__(self, client: "AiokafkaClient", starts: Mapping[Place, int]) -> None:
        self._client = client
        self._consumer: Any = client.run(self._start(client.settings, starts))

    async def _start(self, settings: Mapping[str, Any], starts: Mapping[Place, int]) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(
            **settings, isolation_level="read_committed", enable_auto_commit=False, auto_offset_reset="none"
        )
        await consumer.start()
        places = {aiokafka.TopicPartition(*place): start for place, start in starts.items()}
        consumer.assign(list(places))
        for place, start in places.items():
            if start == FROM_NOW:
                await consumer.seek_to_end(place)
            else:
                consumer.seek(place, start)
        return consumer

    def poll(self, wait_s: float) -> list[Received]:
        polled = self._client.run(self._consumer.getmany(timeout_ms=int(wait_s * 1_000)))
        return [
            Received(Place(record.topic, record.partition), record.offset, record.value)
            for records in polled.values()
            for record in records
        ]

    def close(self) -> None:
        self._client.run(self._consumer.stop())


class AiokafkaClient:
    """A transactional producer of aiokafka."""

    def __init__(self, plan: ProgramPlan) -> None:
        self._plan = plan
        self._loop = asyncio.new_event_loop()
        self.settings: dict[str, Any] = {"bootstrap_servers": plan.servers.split(",")}
        self._producer: Any = None
        self._sent: list[Awaitable[Any]] = []

    def run(self, work: Coroutine[Any, Any, T], *, limit_s: float = CALL_S) -> T:
        """The result. Raises MustAbort or CannotGoOn."""

        async def limited() -> T:
            async with asyncio.timeout(limit_s):
                return await work

        try:
            return self._loop.run_until_complete(limited())
        except (KafkaError, TimeoutError) as fault:
            reason = f"{type(fault).__name__}: {fault}"
            raise (MustAbort if self._can_abort() else CannotGoOn)(reason) from fault

    def _can_abort(self) -> bool:
        """Whether the producer goes on after an abort; it has no public word for that."""
        manager = None if self._producer is None else self._producer._txn_manager
        return manager is not None and manager.state.name in ("IN_TRANSACTION", "ABORTABLE_ERROR")

    def reader(self, starts: Mapping[Place, int]) -> LedgerReader:
        return AiokafkaReader(self, starts)

    def initialize(self) -> None:
        self.run(self._start(), limit_s=_PATIENCE_S)

    async def _start(self) -> None:
        self._producer = aiokafka.AIOKafkaProducer(
            **self.settings,
            transactional_id=self._plan.transactional_id,
            transaction_timeout_ms=self._plan.transaction_timeout_ms,
        )
        await self._producer.start()

    def committed(self, place: Place) -> int:
        return self.run(self._committed(aiokafka.TopicPartition(*place)), limit_s=_PATIENCE_S)

    async def _committed(self, place: aiokafka.TopicPartition) -> int:
        consumer = aiokafka.AIOKafkaConsumer(**self.settings, group_id=self._plan.group, enable_auto_commit=False)
        await consumer.start()
        try:
            consumer.assign([place])
            return await consumer.committed(place) or 0
        finally:
            await consumer.stop()

    def begin(self) -> None:
        self._sent.clear()
        self.run(self._producer.begin_transaction())

    def send(self, place: Place, value: bytes) -> None:
        self._sent.append(self.run(self._producer.send(place.topic, value, partition=place.partition)))

    def flush(self) -> None:
        self.run(self._flush())

    async def _flush(self) -> None:
        for sent in self._sent:
            await sent

    def commit_offset(self, place: Place, offset: int) -> None:
        offsets = {aiokafka.TopicPartition(*place): offset}
        self.run(self._producer.send_offsets_to_transaction(offsets, self._plan.group))

    def commit(self) -> None:
        self.flush()  # its commit does not fail if a record has
        self.run(self._producer.commit_transaction(), limit_s=_PATIENCE_S)

    def abort(self) -> None:
        self.run(self._producer.abort_transaction(), limit_s=_PATIENCE_S)

    def pause(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def close(self) -> None:
        self._loop.close()
