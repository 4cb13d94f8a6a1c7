"""kafka-python as a client of the ledger."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import kafka
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from crash.ledger.client import CALL_S, FROM_NOW, CannotGoOn, LedgerReader, MustAbort, Received
from crash.ledger.plan import ProgramPlan
from testkit.verdicts.ledger import Place

_PATIENCE_S = 60.0


class KafkaPythonReader:
    """An assigned consumer."""

    def __init__(self, settings: Mapping[str, Any], starts: Mapping[Place, int]) -> None:
        self._consumer = kafka.KafkaConsumer(
            **settings, isolation_level="read_committed", enable_auto_commit=False, auto_offset_reset="none"
        )
        places = {kafka.TopicPartition(*place): start for place, start in starts.items()}
        self._consumer.assign(list(places))
        for place, start in places.items():
            if start == FROM_NOW:
                self._consumer.seek_to_end(place)
            else:
                self._consumer.seek(place, start)

    def poll(self, wait_s: float) -> list[Received]:
        with _errors(lambda: False):
            polled = self._consumer.poll(timeout_ms=int(wait_s * 1_000))
        return [
            Received(Place(record.topic, record.partition), record.offset, record.value)
            for records in polled.values()
            for record in records
        ]

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonClient:
    """A transactional producer of kafka-python."""

    def __init__(self, plan: ProgramPlan) -> None:
        self._plan = plan
        self._settings: dict[str, Any] = {"bootstrap_servers": plan.servers.split(",")}
        self._producer: Any = None
        self._sent: list[Any] = []

    def reader(self, starts: Mapping[Place, int]) -> LedgerReader:
        return KafkaPythonReader(self._settings, starts)

    def initialize(self) -> None:
        self._producer = kafka.KafkaProducer(
            **self._settings,
            transactional_id=self._plan.transactional_id,
            transaction_timeout_ms=self._plan.transaction_timeout_ms,
            max_block_ms=_PATIENCE_S * 1_000,
        )
        with self._errors():
            self._producer.init_transactions()

    def committed(self, place: Place) -> int:
        consumer = kafka.KafkaConsumer(**self._settings, group_id=self._plan.group, enable_auto_commit=False)
        try:
            with _errors(lambda: False):
                return consumer.committed(kafka.TopicPartition(*place), timeout_ms=_PATIENCE_S * 1_000) or 0
        finally:
            consumer.close()

    def begin(self) -> None:
        self._sent.clear()
        with self._errors():
            self._producer.begin_transaction()

    def send(self, place: Place, value: bytes) -> None:
        with self._errors():
            self._sent.append(self._producer.send(place.topic, value, partition=place.partition))

    def flush(self) -> None:
        with self._errors():
            for future in self._sent:
                future.get(timeout=CALL_S)

    def commit_offset(self, place: Place, offset: int) -> None:
        offsets = {kafka.TopicPartition(*place): OffsetAndMetadata(offset, "", -1)}
        with self._errors():
            self._producer.send_offsets_to_transaction(offsets, self._plan.group)

    def commit(self) -> None:
        self.flush()
        with self._errors():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with self._errors():
            self._producer.abort_transaction()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self._producer.close(timeout=0)

    def _errors(self) -> AbstractContextManager[None]:
        return _errors(self._can_abort)

    def _can_abort(self) -> bool:
        """Whether the producer goes on after an abort; it has no public word for that."""
        manager = self._producer._transaction_manager
        return bool(manager.is_transactional() and not manager.has_fatal_error() and not manager.is_completing())


@contextmanager
def _errors(can_abort: Callable[[], bool]) -> Iterator[None]:
    try:
        yield
    except KafkaError as fault:
        reason = f"{type(fault).__name__}: {fault}"
        raise (MustAbort if can_abort() else CannotGoOn)(reason) from fault
