"""librdkafka (confluent-kafka) as a client of the ledger."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import confluent_kafka

from crash.ledger.client import CALL_S, CannotGoOn, LedgerReader, MustAbort, Received
from crash.ledger.plan import ProgramPlan
from testkit.verdicts.ledger import Place

_AT_ONCE = 500


class LibrdkafkaReader:
    """An assigned consumer."""

    def __init__(self, settings: Mapping[str, Any], starts: Mapping[Place, int]) -> None:
        more = {"isolation.level": "read_committed", "enable.auto.commit": False, "auto.offset.reset": "error"}
        self._consumer = confluent_kafka.Consumer({**settings, **more, "group.id": "readers of the ledger"})
        self._consumer.assign([confluent_kafka.TopicPartition(*place, start) for place, start in starts.items()])

    def poll(self, wait_s: float) -> list[Received]:
        received: list[Received] = []
        for message in self._consumer.consume(_AT_ONCE, wait_s):
            fault = message.error()
            if fault is None:
                received.append(
                    Received(Place(message.topic(), message.partition()), message.offset(), message.value())
                )
            elif fault.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
                raise CannotGoOn(f"the reader has lost its position: {fault}")
        return received

    def close(self) -> None:
        self._consumer.close()


class LibrdkafkaClient:
    """A transactional producer of librdkafka."""

    def __init__(self, plan: ProgramPlan) -> None:
        self._plan = plan
        self._settings: dict[str, Any] = {
            "bootstrap.servers": plan.servers,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        self._producer: Any = None
        self._committing: Any = None

    def reader(self, starts: Mapping[Place, int]) -> LedgerReader:
        return LibrdkafkaReader(self._settings, starts)

    def initialize(self) -> None:
        more = {
            "transactional.id": self._plan.transactional_id,
            "transaction.timeout.ms": self._plan.transaction_timeout_ms,
            "linger.ms": 0,
        }
        self._producer = confluent_kafka.Producer({**self._settings, **more})
        self._committing = confluent_kafka.Consumer({**self._settings, "group.id": self._plan.group})
        _until_done(lambda: self._producer.init_transactions(CALL_S))

    def committed(self, place: Place) -> int:
        wanted = [confluent_kafka.TopicPartition(*place)]
        found: list[Any] = []
        _until_done(lambda: found.extend(self._committing.committed(wanted, CALL_S)))
        return max(0, int(found[0].offset))

    def begin(self) -> None:
        with _errors():
            self._producer.begin_transaction()

    def send(self, place: Place, value: bytes) -> None:
        with _errors():
            self._producer.produce(place.topic, value, partition=place.partition)

    def flush(self) -> None:
        if self._producer.flush(CALL_S):
            raise MustAbort("records are not written in time")

    def commit_offset(self, place: Place, offset: int) -> None:
        offsets = [confluent_kafka.TopicPartition(*place, offset)]
        author = self._committing.consumer_group_metadata()
        _until_done(lambda: self._producer.send_offsets_to_transaction(offsets, author, CALL_S))

    def commit(self) -> None:
        _until_done(lambda: self._producer.commit_transaction(CALL_S))

    def abort(self) -> None:
        _until_done(lambda: self._producer.abort_transaction(CALL_S))

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self._producer.purge()


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except confluent_kafka.KafkaException as fault:
        if fault.args[0].txn_requires_abort():
            raise MustAbort(_reason(fault)) from fault
        raise CannotGoOn(_reason(fault)) from fault


def _reason(fault: confluent_kafka.KafkaException) -> str:
    return f"{fault.args[0].name()}: {fault.args[0].str()}"


def _until_done(call: Callable[[], None]) -> None:
    """Make the call again while librdkafka says so."""
    deadline_s = time.monotonic() + 2 * CALL_S
    with _errors():
        while True:
            try:
                return call()
            except confluent_kafka.KafkaException as fault:
                if not fault.args[0].retriable() or time.monotonic() > deadline_s:
                    raise
