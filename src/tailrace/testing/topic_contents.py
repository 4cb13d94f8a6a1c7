"""The records of a topic, as a test reads and compares them."""

import difflib
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic, sleep
from typing import Literal, TypeAlias

from tailrace.client.blocking.admin import Admin
from tailrace.client.blocking.consumer import Consumer
from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing.comparison import Comparison, Expected, ExpectedRecord
from tailrace.testing.servers import Connection
from tailrace.testing.waits import POLL_S, blocked_loop, see_markers, wait_until

_LEAST_S = 1.0
"""The least time for reading a topic, also at the end of a wait."""
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]

__tracebackhide__ = True  # pytest shows the line of the test


def read_all(
    servers: Connection, topic: str, *, isolation: Isolation = "read_committed", timeout: float = 30.0
) -> list[ConsumerRecord]:
    """The records that the topic holds now, by partition and offset; with read_committed also the records of each
    transaction whose commit has returned.

    Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION) for a topic that does not exist, and TimeoutError.
    """
    deadline = monotonic() + timeout
    _check_exists(servers, topic, timeout)
    if isolation == "read_committed":
        wanted = f"topic {topic!r} can be read to its end"
        wait_until(wanted, partial(see_markers, servers, topic), deadline - monotonic(), call="read_all")
    records: list[ConsumerRecord] = []
    with Consumer(
        servers, topics=[topic], auto_offset_reset="earliest", until="end", isolation_level=isolation
    ) as consumer:
        while not consumer.is_at_end:
            records += consumer.poll(1.0)
            if monotonic() > deadline and not consumer.is_at_end:
                raise TimeoutError(
                    f"topic {topic!r} was not read to its end within {timeout} s: {len(records)} records were read,"
                    f" and the consumer says {consumer.trouble or 'nothing is wrong'}{blocked_loop('read_all')}"
                )
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _check_exists(servers: Connection, topic: str, timeout: float) -> None:
    wait_ms = max(int(timeout * 1000), 1)
    with Admin(servers, bootstrap_timeout_ms=wait_ms, default_api_timeout_ms=wait_ms) as admin:
        if admin.existing_topics([topic]):
            return
        names = [known.name for known in admin.list_topics()]
    near = difflib.get_close_matches(topic, names, n=3) or sorted(names)[:3]
    there = f"topics that exist: {', '.join(map(repr, near))}" if near else "the cluster has no topic"
    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r} does not exist; {there}")


def assert_holds(
    read: Callable[[float], list[ConsumerRecord]],
    topic: str,
    expected: Sequence[Expected],
    *,
    ordered: bool,
    allow_duplicates: bool = False,
    timeout: float,
) -> None:
    """Compare what `read` returns within the given seconds with the expected records, again and again until the
    deadline while records, or the topic, are only missing. A topic that does not exist holds no record.

    Raises AssertionError with the differences and the last records; ValueError if the records of several partitions
    are to be in order.
    """
    wanted = [ExpectedRecord(item, f"record {number} of those expected") for number, item in enumerate(expected)]
    began = monotonic()
    deadline = began + timeout
    while True:
        is_late = monotonic() >= deadline
        try:
            records = read(max(deadline - monotonic(), _LEAST_S))
        except KafkaError as fault:
            if fault.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            records, absence = [], fault.detail
        else:
            absence = ""
        if ordered and len({record.partition for record in records}) > 1:
            raise ValueError(f"topic {topic!r} has records in several partitions, which have no common order")
        compared = Comparison(wanted, records)
        is_wrong = bool(compared.unexpected or (compared.repeated and not allow_duplicates))
        if not is_wrong and not compared.missing:
            break
        if is_wrong or is_late:
            waited_s = monotonic() - began
            text = compared.message(topic, allow_duplicates=allow_duplicates, waited_s=waited_s)
            if absence:
                text = f"{absence}; waited {waited_s:.1f} s"
            raise AssertionError(text if is_wrong else f"{text}{blocked_loop('assert_holds', chr(10))}")
        sleep(POLL_S)
    if ordered and (other_order := compared.order_message(topic)):
        raise AssertionError(other_order)
