"""Tailrace's own Python client as a client of the ledger."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from crash.ledger.client import FROM_NOW, CannotGoOn, LedgerReader, MustAbort, Received
from crash.ledger.plan import ProgramPlan
from tailrace.client.blocking import Admin, Consumer, Producer
from tailrace.client.errors import AbortableTransactionError
from tailrace.client.group.committed_offsets import ConsumerGroupMetadata
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from testkit.verdicts.ledger import Place

_LATEST = -1
_READ_COMMITTED = 1


class TailraceReader:
    """An assigned consumer."""

    def __init__(self, servers: str, starts: Mapping[Place, int]) -> None:
        self._consumer = Consumer(servers, isolation="read_committed", auto_offset_reset="none")
        places = {TopicPartition(*place): start for place, start in starts.items()}
        self._consumer.assign(list(places))
        ends = _ends(servers, [place for place, start in places.items() if start == FROM_NOW])
        for place, start in {**places, **ends}.items():
            self._consumer.seek(place, start)

    def poll(self, wait_s: float) -> list[Received]:
        with _errors():
            records = self._consumer.poll(wait_s)
        return [
            Received(Place(record.topic, record.partition), record.offset, record.value or b"") for record in records
        ]

    def close(self) -> None:
        self._consumer.close()


def _ends(servers: str, places: list[TopicPartition]) -> dict[TopicPartition, int]:
    with _errors(), Admin(servers) as admin:
        found = admin.list_offsets(dict.fromkeys(places, _LATEST), isolation_level=_READ_COMMITTED) if places else {}
    return {place: offset.offset for place, offset in found.items()}


class TailraceClient:
    """A transactional producer of Tailrace."""

    def __init__(self, plan: ProgramPlan) -> None:
        self._plan = plan
        self._producer = Producer(
            plan.servers,
            transactional_id=plan.transactional_id,
            transaction_timeout_ms=plan.transaction_timeout_ms,
        )

    def reader(self, starts: Mapping[Place, int]) -> LedgerReader:
        return TailraceReader(self._plan.servers, starts)

    def initialize(self) -> None:
        with _errors():
            self._producer.init_transactions()

    def committed(self, place: Place) -> int:
        with _errors(), Admin(self._plan.servers) as admin:
            found = admin.group_offsets(self._plan.group).get(TopicPartition(*place))
        return 0 if found is None else found.offset

    def begin(self) -> None:
        with _errors():
            self._producer.begin_transaction()

    def send(self, place: Place, value: bytes) -> None:
        with _errors():
            self._producer.send(place.topic, value, partition=place.partition)

    def flush(self) -> None:
        with _errors():
            self._producer.flush()

    def commit_offset(self, place: Place, offset: int) -> None:
        with _errors():
            self._producer.send_offsets_to_transaction(
                {TopicPartition(*place): offset}, ConsumerGroupMetadata(self._plan.group)
            )

    def commit(self) -> None:
        with _errors():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with _errors():
            self._producer.abort_transaction()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self._producer.close()


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except AbortableTransactionError as fault:
        raise MustAbort(_reason(fault)) from fault
    except KafkaError as fault:
        raise CannotGoOn(_reason(fault)) from fault


def _reason(fault: KafkaError) -> str:
    return f"{type(fault).__name__} {fault.code.name}: {fault}"
